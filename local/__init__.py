"""The one-machine cloud: the real template, machines and functions without an AWS account."""
