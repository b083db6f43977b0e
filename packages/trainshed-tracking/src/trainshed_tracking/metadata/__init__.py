"""Experiments and their runs, artifacts and executions: records, their tables, and MetadataService."""
