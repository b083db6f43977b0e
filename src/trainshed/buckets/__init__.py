"""The data plane of gs://: objects on disk or in a store elsewhere, the GCS JSON API, resumable uploads. A process of its own."""
