"""Reducers for PyTorch: all-reduce of process groups, a backend by name, and a communication hook for DDP.

Programs that use backend gloo or nccl need none of it (`trainshed_reduction.autoload`). Importing this
registers the backend "trainshed".
"""

from trainshed_reduction import autoload
from trainshed_reduction.pytorch.hook import ReductionState, allreduce_hook
from trainshed_reduction.pytorch.override import register

__all__ = ["ReductionState", "allreduce_hook"]

if not autoload.under_way:
    # A registered backend affects some of PyTorch's decisions, so not every job with reducers gets it.
    register()
