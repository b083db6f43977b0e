"""Runs compiled pipelines and their schedules: an addition to a service (`trainshed.api.additions`)."""
