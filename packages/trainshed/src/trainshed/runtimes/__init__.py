"""Chooses and builds runtimes: framework families, environments, packages of jobs, container images."""
