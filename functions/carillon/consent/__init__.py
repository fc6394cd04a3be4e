"""Who is not to be mailed: the suppression list, and the links by which people get onto it."""
