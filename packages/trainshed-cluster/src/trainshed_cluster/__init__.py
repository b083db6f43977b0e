"""Runs jobs on the nodes of Slurm and Kubernetes clusters, where agents connect to the service."""
