"""What a job is asked to be and what it comes to: its specification, how its processes ended, its public
error. Values only."""
