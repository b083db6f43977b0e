"""Pipeline jobs: runs of compiled pipelines, whose tasks are jobs."""
