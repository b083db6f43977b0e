"""Reads the replicas' log lines and other streams from the segments that shims write."""
