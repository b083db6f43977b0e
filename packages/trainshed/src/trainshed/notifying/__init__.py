"""Sends notifications about jobs that end or stall: signed webhooks and mail."""
