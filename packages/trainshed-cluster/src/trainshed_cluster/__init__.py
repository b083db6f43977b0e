"""Runs jobs on other machines than the service's: the session with their nodes, Slurm, and Kubernetes."""
