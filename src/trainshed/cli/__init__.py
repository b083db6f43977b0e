"""The trainshed command: commands over the public API, packaging of user code."""
