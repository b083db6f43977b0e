"""Experiments, ML Metadata and tensorboards, and TensorBoard for the output of jobs."""
