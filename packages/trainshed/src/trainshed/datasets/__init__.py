"""Writes the splits of datasets for programs, in a separate process before the job starts."""
