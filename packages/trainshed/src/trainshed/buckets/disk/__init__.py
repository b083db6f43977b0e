"""Keeps buckets on this disk: objects as plain files, their records beside them, and the list of buckets."""
