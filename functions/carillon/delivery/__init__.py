"""From a message whose minute has come to SES, at most once."""
