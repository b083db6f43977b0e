"""Isolates a replica: its view of the files, its user, its namespaces and the filter of its system calls."""
