"""`aiplatform` v1 MetadataService: records of experiments, and the lineage of artifacts."""
