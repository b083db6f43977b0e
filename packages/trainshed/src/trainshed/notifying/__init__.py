"""Sends notifications about jobs that finish or stall, as signed webhooks and as mail."""
