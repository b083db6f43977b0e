"""Serves the public APIs. Handlers convert requests to specifications or intents, and records to public
messages."""
