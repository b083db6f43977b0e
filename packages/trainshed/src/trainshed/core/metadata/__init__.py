"""Experiments and lineage: the records of runs, artifacts and executions, and queries over them."""
