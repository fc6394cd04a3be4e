"""The list: any file in, one recipient a row, and the reason of everybody who is not written to."""
