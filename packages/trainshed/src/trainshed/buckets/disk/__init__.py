"""Stores buckets on the local disk: objects as plain files, their records, and the list of buckets."""
