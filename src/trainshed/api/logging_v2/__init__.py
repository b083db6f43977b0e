"""Logging v2: `entries:list` over the jobs' logs and timelines, `entries:write` into the log of the program
that calls."""
