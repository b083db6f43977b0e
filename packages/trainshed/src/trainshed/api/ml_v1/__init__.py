"""AI Platform Training, `ml` v1: projects.jobs and projects.getConfig."""
