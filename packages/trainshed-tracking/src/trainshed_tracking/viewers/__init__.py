"""Runs TensorBoard for the output of jobs: one sandboxed process per view, which ends when it is idle."""
