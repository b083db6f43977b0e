"""Trainshed: a self-hosted training service. The rooms and who may import whom: docs/architecture.md."""
