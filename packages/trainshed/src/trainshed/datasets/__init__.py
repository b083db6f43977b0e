"""Writes the splits of datasets for programs. A separate process writes them before the job starts."""
