"""Resource Manager `projects.get`: v1, as `gcloud projects describe` calls it, and v3, as the Vertex SDK does."""
