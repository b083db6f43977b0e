"""What a fault cost a job: seconds down, checkpoints written and read, steps lost. Pure."""
