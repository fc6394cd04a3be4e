"""Amazon SES v2 on one machine: it refuses what SES refuses, keeps every e-mail, and tells what became of it."""
