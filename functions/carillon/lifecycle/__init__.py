"""What people and the clock do with a campaign: the API, cancel, reconcile."""
