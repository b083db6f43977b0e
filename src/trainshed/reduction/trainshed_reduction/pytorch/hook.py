"""All-reduce of DDP's buckets by a communication hook, for groups that are not replaced: PyTorch from 2.5 on.

model.register_comm_hook(ReductionState(), allreduce_hook)
"""

# Annotations stay objects: DDP looks at a hook's.
import os
from typing import Optional

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from trainshed_reduction import process
from trainshed_reduction import settings as settings_module
from trainshed_reduction.pytorch.group import ReducingGroup, Sessions, sessions_of
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
        if isinstance(group, ReducingGroup):
            return
        settings = settings_module.from_environ(os.environ)
        if settings is None:
            process.tell(
                "native",
                "native all-reduce is used: {} is not set".format(settings_module.REDUCERS),
            )
        elif group.size() > 1:
            store = dist.PrefixStore("hook", c10d._world.pg_map[group][1])
            self.sessions = sessions_of(
                group, settings, "hook/" + group.group_name, store, is_world=False
            )


def allreduce_hook(
    state: ReductionState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """The mean of a bucket's gradients over the ranks, as DDP's own. Raises ReductionFailed."""
    tensor = bucket.buffer()

    def natively() -> dist.Work:
        tensor.div_(state.process_group.size())
        return dist.all_reduce(tensor, group=state.process_group, async_op=True)

    work = None
    if state.sessions is not None and is_served(tensor, state.sessions.settings.min_bytes):
        work = state.sessions.allreduce(tensor, Reduction.AVERAGE, natively)
    if work is None:
        work = natively()
        if state.sessions is not None:
            state.sessions.went_native((tensor,), dist.ReduceOp.SUM, work)
    return work.get_future().then(lambda future: future.value()[0])
