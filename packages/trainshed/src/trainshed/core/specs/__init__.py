"""Parsers of both public APIs, which return validated job specifications of one common form."""
