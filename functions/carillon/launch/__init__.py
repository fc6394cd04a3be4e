"""From a list, templates and a plan to rows and schedules; and the same without any consequence."""
