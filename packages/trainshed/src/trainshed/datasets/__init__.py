"""Writes the splits of datasets that programs read, in a separate process before the job starts."""
