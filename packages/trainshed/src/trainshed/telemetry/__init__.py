"""Writes log lines with fields, counts events in the service, and measures the delay of the event loop."""
