"""Reducers for PyTorch: all-reduce of groups of backend gloo or nccl (`trainshed_reduction.autoload`)."""
