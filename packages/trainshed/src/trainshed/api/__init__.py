"""Serves the public APIs: converts requests to specifications or intents, and records to public messages."""
