"""Tensorboards: what is recorded of experiments, their runs and the series of values in them."""
