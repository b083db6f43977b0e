"""Runs TensorBoard for the output of jobs. Each view has a sandboxed process that ends when it is idle."""
