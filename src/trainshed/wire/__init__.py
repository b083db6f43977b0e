"""The public messages: descriptors in a private pool, strict JSON both ways."""
