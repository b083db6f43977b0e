"""Notifies people and programs that jobs have ended or stalled: signed webhooks and mail."""
