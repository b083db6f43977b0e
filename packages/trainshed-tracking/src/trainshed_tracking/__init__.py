"""Experiments, ML Metadata and tensorboards. Also runs TensorBoard for the output of jobs."""
