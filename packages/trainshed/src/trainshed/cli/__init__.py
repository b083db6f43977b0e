"""The `trainshed` command: commands that call the public API, and the packaging of users' code."""
