"""Serves the public APIs: handlers turn requests into specs or intents, and records into public messages."""
