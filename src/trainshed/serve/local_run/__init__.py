"""`trainshed local-run`: one program in the environment that a replica of a job would have, without a
service."""
