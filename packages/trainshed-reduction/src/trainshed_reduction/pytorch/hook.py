"""All-reduce of DDP's buckets by a communication hook, for groups that are not replaced: PyTorch from 2.5 on.

model.register_comm_hook(ReductionState(), allreduce_hook)
"""

# No `from __future__ import annotations`: DDP inspects the annotations of a hook.
from typing import Optional

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from trainshed_reduction.pytorch.group import ReducingGroup, configured
from trainshed_reduction.pytorch.session import Sessions
from trainshed_reduction.pytorch.tensors import is_served
from trainshed_reduction.wire import Reduction


class ReductionState:
    """The state of one model's hook. All ranks make theirs at the same place in the program; reducers are
    connected with the first bucket that is for them."""

    def __init__(self, process_group: Optional[dist.ProcessGroup] = None) -> None:
        """`process_group`: None is the group of all ranks."""
        group = process_group if process_group is not None else dist.group.WORLD
        if group is None:
            raise RuntimeError("no process group: call torch.distributed.init_process_group first")
        self.process_group = group
        self.sessions: Optional[Sessions] = None
        settings = None if isinstance(group, ReducingGroup) else configured()
        if settings is not None and group.size() > 1:
            store = dist.PrefixStore("hook", c10d._world.pg_map[group][1])
            name = "hook/" + group.group_name
            self.sessions = Sessions(group, settings, name, store, is_world=False)


def allreduce_hook(
    state: ReductionState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Return the mean of a bucket's gradients over the ranks, as DDP itself does. Raises ReductionFailed."""
    tensor, sessions = bucket.buffer(), state.sessions

    def natively() -> dist.Work:
        tensor.div_(state.process_group.size())
        return dist.all_reduce(tensor, group=state.process_group, async_op=True)

    session = None if sessions is None else sessions.of(tensor.device.type)
    work = None
    if session is not None and is_served(tensor, sessions.settings.min_bytes):
        work = session.allreduce(tensor, Reduction.AVERAGE, natively)
    if work is None:
        work = natively()
        if session is not None:
            session.order.native(tensor, dist.ReduceOp.SUM, work)
    return work.get_future().then(lambda future: future.value()[0])
