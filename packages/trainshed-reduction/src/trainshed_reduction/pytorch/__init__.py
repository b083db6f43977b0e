"""Reducers for PyTorch: all-reduce of process groups with the backend gloo or nccl
(`trainshed_reduction.autoload`)."""
