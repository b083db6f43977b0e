"""Reducers for PyTorch: all-reduce of process groups, and a backend by name.

Programs that use backend gloo or nccl need none of it (`trainshed_reduction.autoload`). Importing this
registers the backend "trainshed".
"""

from trainshed_reduction import autoload
from trainshed_reduction.pytorch.override import register

if not autoload.under_way:
    # A registered backend affects some of PyTorch's decisions, so not every job with reducers gets it.
    register()
