"""Defines jobs, attempts, replicas, trials and studies, and their possible transitions. Pure."""
