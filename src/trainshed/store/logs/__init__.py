"""The replicas' log lines, read from the segments that their shims write."""
