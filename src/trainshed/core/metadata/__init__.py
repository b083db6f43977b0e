"""Experiments and lineage: what is recorded of runs, artifacts and executions, and asked of them."""
