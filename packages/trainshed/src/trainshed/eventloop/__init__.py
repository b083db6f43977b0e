"""Runs background tasks on the event loop, logs failures, restarts tasks, and tunes garbage collection."""
