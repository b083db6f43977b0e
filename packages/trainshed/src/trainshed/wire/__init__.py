"""Reads and writes the public messages: descriptors in a private pool, strict JSON both ways."""
