"""Runs background tasks of the event loop, logs their failures and restarts them; tunes garbage collection."""
