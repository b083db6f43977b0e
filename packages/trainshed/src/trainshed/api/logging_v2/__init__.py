"""Logging v2: `entries:list` for logs and timelines of jobs, `entries:write` for the log of the calling
program."""
