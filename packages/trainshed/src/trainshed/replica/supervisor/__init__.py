"""Runs a replica's program and records its end: the shim, its guardian, the journal and the sidecars."""
