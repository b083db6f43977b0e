"""What a fault did to a job's progress: seconds down, checkpoints written and read, steps lost. Pure."""
