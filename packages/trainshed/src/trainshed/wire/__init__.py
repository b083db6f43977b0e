"""Reads and writes the public messages: descriptors in a private pool, strict JSON in both directions."""
