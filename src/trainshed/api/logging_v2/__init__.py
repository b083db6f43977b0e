"""Logging v2 `entries:list` over the jobs' logs and timelines."""
