"""The command line: what needs no account works on files alone."""
