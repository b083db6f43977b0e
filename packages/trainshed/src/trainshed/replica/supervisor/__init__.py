"""Runs a replica's program and records its end. Contains the shim, the main process, the journal and the
sidecars."""
