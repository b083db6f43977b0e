"""`trainshed local-run`: runs one program in the environment of a job's replica, without a service."""
