"""Logging v2: `entries:list` of jobs' logs and timelines, `entries:write` to the calling program's log."""
