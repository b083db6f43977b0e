"""Runs TensorBoard on what jobs wrote: one confined process for each view, which ends when idle."""
