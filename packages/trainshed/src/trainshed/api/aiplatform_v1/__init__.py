"""Vertex AI, `aiplatform` v1: jobs, pipelines, models, datasets, studies, metadata and TensorBoards."""
