"""AI Platform Training, `ml` v1: projects.jobs, projects.getConfig, locations, studies, operations."""
