"""Reads the replicas' log lines, and what else their shims record, from the segments that shims write."""
