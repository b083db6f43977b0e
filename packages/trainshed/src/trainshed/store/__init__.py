"""Stores durable records in SQLite, with one part for each kind of caller. Reads the logs of jobs."""
