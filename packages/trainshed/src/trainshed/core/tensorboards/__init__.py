"""Tensorboards: the records of experiments, their runs, and the series of values in them."""
