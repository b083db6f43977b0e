"""Sends files to nodes that share no file system with the service: environments, interpreters, images, and
the agent's own code (docs/adr/0063)."""
