"""Runs algorithms in a process of their own, so that numeric libraries neither load nor block the service."""
