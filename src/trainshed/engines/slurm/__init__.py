"""The Slurm engine: nodes of Slurm clusters, allocated to attempts, over `engines.remote`."""
