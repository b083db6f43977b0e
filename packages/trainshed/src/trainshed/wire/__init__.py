"""Reads and writes the public messages: descriptors in a private pool, and strict JSON."""
