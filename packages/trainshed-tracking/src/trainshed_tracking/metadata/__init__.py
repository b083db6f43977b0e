"""Experiments and their runs, artifacts and executions: records, tables, and MetadataService."""
