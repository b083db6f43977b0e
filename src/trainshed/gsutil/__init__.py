"""The command gsutil of jobs, for any Python from 3.6 on, as a client of a replica's endpoint."""
