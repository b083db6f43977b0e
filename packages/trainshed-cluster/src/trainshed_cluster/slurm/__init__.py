"""The Slurm engine allocates nodes of Slurm clusters to attempts, on top of `trainshed_cluster.remote`."""
