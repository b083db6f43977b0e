"""`trainshed run`: packs a program of this machine and submits it as a job."""
