"""Notifies people and programs when jobs end or stall: signed webhooks and mail."""
