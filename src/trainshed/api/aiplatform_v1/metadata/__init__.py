"""`aiplatform` v1 MetadataService: what experiments are recorded by, and the lineage of artifacts."""
