"""What a replica is kept apart by: its view of the files, its user, its namespaces and the filter of its
calls."""
