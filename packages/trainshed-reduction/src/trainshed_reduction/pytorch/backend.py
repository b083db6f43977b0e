"""The backend that programs can ask for by name: init_process_group("trainshed").

Its groups use gloo for CPU tensors and NCCL for GPU tensors, and reducers as any other group does. Without
configured reducers they are native, and a line says so: the same program runs anywhere.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from trainshed_reduction.pytorch.group import ReducingGroup, configured

NAME = "trainshed"


def register() -> None:
    """Register the backend, once, in PyTorch's public way for foreign backends."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _make, extended_api=True, devices=["cpu", "cuda"])


def _make(given: Any, options: Any) -> ReducingGroup:
    """`given`: store, group_rank, group_size, timeout, group_id, global_ranks_in_group."""
    rank, size = given.group_rank, given.group_size
    group = ReducingGroup(given.store, rank, size)
    kinds = dist.ProcessGroup.BackendType
    group._set_default_backend(kinds.GLOO)
    store = dist.PrefixStore("gloo", given.store)
    gloo = dist.ProcessGroupGloo(store, rank, size, given.timeout)
    group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
    if torch.cuda.is_available() and dist.is_nccl_available():
        own = options if options is not None else dist.ProcessGroupNCCL.Options()
        own._timeout = given.timeout
        store = dist.PrefixStore("nccl", given.store)
        nccl = dist.ProcessGroupNCCL(store, rank, size, own)
        group._set_default_backend(kinds.NCCL)
        group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
    settings = configured()
    if settings is not None and size > 1:
        group.begin(settings, str(given.group_id), is_world=not given.global_ranks_in_group)
    return group
