"""Validated job specifications: one model for both public APIs, and the parsers that fill it."""
