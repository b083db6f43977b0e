"""Buckets on this disk: objects as plain files, their records beside them, which buckets there are."""
