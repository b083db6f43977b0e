"""Copies files of programs and agents to nodes without a file system shared with the service: environments,
interpreters, images, and the agent's own code (docs/adr/0063)."""
