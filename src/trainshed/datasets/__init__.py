"""Writes what programs read of datasets: a step before a job, in a process of its own."""
