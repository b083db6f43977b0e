"""Runs tasks beside the event loop, logs and heals their failures, and measures how late the loop is."""
