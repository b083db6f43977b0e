"""The data plane of gs://: objects on disk, the GCS JSON API, resumable uploads. A process of its own."""
