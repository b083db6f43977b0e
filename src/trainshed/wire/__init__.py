"""The public messages: descriptor sets and discovery-derived descriptors loaded into a private pool, strict JSON both ways."""
