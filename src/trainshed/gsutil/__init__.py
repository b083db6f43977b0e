"""The command gsutil of jobs, for any Python from 3.6 on; it speaks to a replica's endpoint."""
