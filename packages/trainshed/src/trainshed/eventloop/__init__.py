"""Runs background tasks of the event loop, logs failures, restarts them; tunes garbage collection."""
