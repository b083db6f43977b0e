"""The Slurm engine allocates nodes of Slurm clusters to attempts, on top of `engines.remote`."""
