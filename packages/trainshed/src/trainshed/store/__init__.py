"""Keeps the durable records in SQLite, with one part per kind of writer or reader, and reads logs."""
