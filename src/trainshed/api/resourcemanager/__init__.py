"""Resource Manager v1 `projects.get`, as `gcloud projects describe` calls it."""
