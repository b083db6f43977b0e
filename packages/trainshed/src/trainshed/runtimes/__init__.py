"""Chooses and builds runtimes: families, environments, a job's packages on top, container images."""
