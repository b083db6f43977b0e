"""Reducers for PyTorch: they execute all-reduces of process groups with the backends gloo and nccl
(`trainshed_reduction.autoload`)."""
