"""Says what jobs, attempts, replicas, trials and studies are, and what may happen to them. Pure."""
