"""Tensorboards with the points of their series: records, their tables, and TensorboardService."""
