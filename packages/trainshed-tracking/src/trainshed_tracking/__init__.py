"""Keeps experiments, ML Metadata and tensorboards, and runs TensorBoard on what jobs wrote."""
