"""Trainshed: a self-hosted training service. docs/architecture.md describes the packages and their allowed
imports."""
