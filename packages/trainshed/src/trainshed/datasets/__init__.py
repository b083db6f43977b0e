"""Writes the splits of datasets for programs to read: a step before a job, in a process of its own."""
