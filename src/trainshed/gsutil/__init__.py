"""Implements the command gsutil for jobs; it runs on any Python from 3.6 on and talks to a replica's
endpoint."""
