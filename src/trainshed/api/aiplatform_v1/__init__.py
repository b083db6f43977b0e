"""Vertex AI custom training, `aiplatform` v1: custom jobs, operations, locations."""
