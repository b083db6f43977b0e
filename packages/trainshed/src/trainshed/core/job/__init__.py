"""The values of a job: its specification, how its processes exited, and its public error."""
