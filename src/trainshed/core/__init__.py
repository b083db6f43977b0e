"""Jobs, attempts, replicas, trials, studies and operations: what they are and what may happen to them.
Pure."""
