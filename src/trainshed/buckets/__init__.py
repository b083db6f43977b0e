"""The data plane of gs://: objects here or elsewhere, who may reach them, the GCS JSON API, metadata of
replicas. A process of its own."""
