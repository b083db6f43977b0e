"""`aiplatform` v1 DatasetService: datasets, imports into them, exports of them (facts/datasets)."""
