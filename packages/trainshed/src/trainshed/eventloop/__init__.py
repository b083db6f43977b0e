"""Runs tasks beside the event loop, logs and heals their failures; settles memory after a start."""
