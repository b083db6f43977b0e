"""`trainshed run`: a program of this machine as a job."""
