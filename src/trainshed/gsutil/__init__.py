"""The command gsutil of jobs: a program of its own for any Python from 3.6 on, which speaks to a replica's
endpoint."""
