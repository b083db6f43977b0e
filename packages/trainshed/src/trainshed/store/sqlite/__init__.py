"""Implements the store in one SQLite file: group-commit writer, readers, numbered migrations."""
