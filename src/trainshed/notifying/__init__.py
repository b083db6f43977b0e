"""Tells people and programs outside of the ends and stalls of jobs: signed webhooks and mail."""
