"""Runs TensorBoard on what jobs wrote: one process for each view, confined, ended when idle."""
