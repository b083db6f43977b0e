"""`aiplatform` v1 DatasetService: datasets, and imports and exports of their data (facts/datasets)."""
