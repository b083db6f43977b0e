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


def _make(parameters: Any, options: Any) -> ReducingGroup:
    """`given`: store, group_rank, group_size, timeout, group_id, global_ranks_in_group."""
    rank, size = parameters.group_rank, parameters.group_size
    group = ReducingGroup(parameters.store, rank, size)
    kinds = dist.ProcessGroup.BackendType
    group._set_default_backend(kinds.GLOO)
    store = dist.PrefixStore("gloo", parameters.store)
    gloo = dist.ProcessGroupGloo(store, rank, size, parameters.timeout)
    group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
    if torch.cuda.is_available() and dist.is_nccl_available():
        own = options if options is not None else dist.ProcessGroupNCCL.Options()
        own._timeout = parameters.timeout
        store = dist.PrefixStore("nccl", parameters.store)
        nccl = dist.ProcessGroupNCCL(store, rank, size, own)
        group._set_default_backend(kinds.NCCL)
        group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
    settings = configured()
    if settings is not None and size > 1:
        group.begin(
            settings, str(parameters.group_id), is_world=not parameters.global_ranks_in_group
        )
    return group
