"""Runs TensorBoard for who looks at what jobs wrote: one process for each view, confined, ended when idle."""
