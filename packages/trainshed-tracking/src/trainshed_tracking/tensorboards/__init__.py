"""Tensorboards with the points of their series: records, tables, and TensorboardService."""
