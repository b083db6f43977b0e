"""PyTorch's process group with one method replaced: all-reduce, where the reducers can do it.

The native backends stay registered and do everything else, in the caller's order: other collectives, other
reductions and element types, sparse or strided tensors, small ones.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, Optional, Tuple

import torch
import torch.distributed as dist

from trainshed_reduction import process
from trainshed_reduction.pytorch import usage
from trainshed_reduction.pytorch.choosing import Natively
from trainshed_reduction.pytorch.order import OperationOrder
from trainshed_reduction.pytorch.session import Group, Session, node_first
from trainshed_reduction.pytorch.tensors import is_served, reduction_of
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import Reduction

_NATIVE = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "get_group_store",
    "merge_remote_group",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
    "split_group",
)


class _Made:
    """Which group of all ranks this is, of those that this process has made."""

    world = ""


class Sessions:
    """A group's sessions by kind of device, each begun when the first tensor of that kind comes, or by
    `start`."""

    def __init__(self, settings: Settings, group: Group, backends: "Dict[str, type]") -> None:
        """`backends`: the native ones' classes, by kind of device. Not the group itself: a cycle would leave
        it to the garbage collector, which may run in a forked child, and gloo's threads are not there."""
        self.settings = settings
        self._group = group
        self._backends = backends
        self._lock = threading.Lock()
        self._by_device: Dict[str, Optional[Session]] = {}
        self._orders: Dict[str, OperationOrder] = {}
        process.close_at_exit(self)

    def start(self, device: str, aloud: bool) -> Optional[Session]:
        """The same on all ranks: None where it is native. `aloud`: rank 0 says in the log what it is."""
        with self._lock:
            if device not in self._by_device:
                self._by_device[device] = self._begin(device, aloud)
            return self._by_device[device]

    def _begin(self, device: str, aloud: bool) -> Optional[Session]:
        local = node_first(self._backends.get(device))
        session = Session(self.settings, self._group, device, local, self._order(device))
        refusal = session.start()
        usage.record.began(refusal)
        if not refusal:
            if aloud and self._group.rank == 0:
                session.speak()
                process.tell("mode", session.describe())
            return session
        if session.is_to_blame or (aloud and self._group.rank == 0):
            process.tell("native", "native all-reduce is used: " + refusal, "WARNING")
        return None

    def allreduce(
        self, tensor: torch.Tensor, reduction: Reduction, natively: Natively
    ) -> "Optional[dist.Work]":
        """None: `natively`, which is for the caller to call, and it is to be told of (`went_native`). Raises
        ReductionFailed."""
        device = tensor.device.type
        session = self.start(device, aloud=False)
        if session is None:
            return None
        return session.allreduce(tensor, reduction, self._order(device).next(), natively)

    def went_native(
        self, tensors: Tuple[torch.Tensor, ...], operation: object, work: "Optional[dist.Work]"
    ) -> None:
        """To be told of every all-reduce that the native backend has taken; `operation`: of
        AllreduceOptions."""
        if tensors:
            self._order(tensors[0].device.type).native(tensors, operation, work)

    def _order(self, device: str) -> OperationOrder:
        order = self._orders.get(device)
        return self._orders.setdefault(device, OperationOrder()) if order is None else order

    def close(self) -> None:
        for session in self._by_device.values():
            if session is not None:
                session.close()
        process.closed(self)


class ReducingGroup(dist.ProcessGroup):
    """Made in the place of PyTorch's own, with its arguments; `begin` once its backends are registered.

    What is not for reducers goes to a group of PyTorch's that has the same backends, and not to this one's
    base: called by way of a subclass the base holds the interpreter's lock while it waits for gloo's, which a
    thread of gloo's may hold while it waits for the interpreter's to let go of a tensor."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        # The constructor with a store makes an object that never calls methods of a subclass.
        super().__init__(rank, size)
        self._store = store
        self._native = dist.ProcessGroup(store, rank, size)
        self._sessions: Optional[Sessions] = None

    @property
    def has_begun(self) -> bool:
        return self._sessions is not None

    def begin(self, settings: Settings, name: str, is_world: bool) -> None:
        """Of the group of all ranks: connect now, all together. Others: with their first tensor for the
        reducers."""
        self._sessions = sessions_of(self, settings, name, self._store, is_world)
        if is_world:
            nccl = getattr(_backends(self).get("cuda"), "__name__", "") == "ProcessGroupNCCL"
            self._sessions.start("cuda" if nccl else "cpu", aloud=True)

    def allreduce(self, *args: Any, **kwargs: Any) -> dist.Work:
        tensors, options = _call(*args, **kwargs)
        sessions = self._sessions
        work = None
        if len(tensors) == 1 and sessions is not None:
            work = self._reduced(tensors[0], options)
        if work is None:
            # One that it refuses is none: it is counted afterwards.
            work = self._native.allreduce(*args, **kwargs)
            if sessions is not None:
                sessions.went_native(tensors, _operation(options), work)
        return work

    def _reduced(self, tensor: torch.Tensor, options: Any) -> Optional[dist.Work]:
        assert self._sessions is not None
        reduction = reduction_of(_operation(options), tensor.dtype)
        if getattr(options, "sparseIndices", None) is not None or reduction is None:
            return None
        usage.record.saw(tensor.numel() * tensor.element_size())
        if not is_served(tensor, self._sessions.settings.min_bytes) or _is_captured(tensor):
            return None
        return self._sessions.allreduce(
            tensor, reduction, lambda: self._sum_natively(tensor, reduction, options)
        )

    def _sum_natively(self, tensor: torch.Tensor, reduction: Reduction, options: Any) -> dist.Work:
        told = dist.AllreduceOptions()
        for name in ("timeout", "asyncOp"):
            if hasattr(options, name):
                setattr(told, name, getattr(options, name))
        told.reduceOp = dist.ReduceOp.SUM
        if reduction is Reduction.AVERAGE:
            tensor.div_(self.size())  # As DDP does: gloo itself has no averages.
        return self._native.allreduce([tensor], told)

    def shutdown(self) -> None:
        self._close()
        self._native.shutdown()

    def abort(self) -> None:
        self._close()
        self._native.abort()

    def _close(self) -> None:
        if self._sessions is not None:
            self._sessions.close()

    # Both groups are told what they are made of.

    def _register_backend(self, *args: Any) -> None:
        if self.bound_device_id is not None:
            self._native.bound_device_id = self.bound_device_id
        self._native._register_backend(*args)
        super()._register_backend(*args)

    def _set_default_backend(self, *args: Any) -> None:
        self._native._set_default_backend(*args)
        super()._set_default_backend(*args)

    def _set_group_name(self, name: str) -> None:
        self._native._set_group_name(name)
        super()._set_group_name(name)

    def _set_group_desc(self, text: str) -> None:
        self._native._set_group_desc(text)
        super()._set_group_desc(text)


def _natively(name: str) -> Callable[..., Any]:
    def method(self: ReducingGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._native, name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in _NATIVE:
    # Those that this PyTorch has.
    if hasattr(dist.ProcessGroup, _name):
        setattr(ReducingGroup, _name, _natively(_name))


def sessions_of(
    group: dist.ProcessGroup, settings: Settings, name: str, store: dist.Store, is_world: bool
) -> Sessions:
    """Not begun yet. All ranks of the group make them at the same place in the program."""
    if is_world:
        _Made.world = str(store.add("trainshed/made/{}".format(group.rank()), 1))
    # So that a group that is made again, with the same name in the same store, finds nothing of the old one.
    key = "trainshed/{}/{}/made/{}".format(_Made.world, name, group.rank())
    instance = "{}.{}".format(_Made.world, store.add(key, 1))
    described = Group(name, group.rank(), group.size(), store, instance)
    return Sessions(settings, described, _backends(group))


def _backends(group: dist.ProcessGroup) -> Dict[str, type]:
    return {device.type: type(group._get_backend(device)) for device in group._device_types}


def _call(
    tensors: Any = None, opts: Any = None, *_: Any, **kwargs: Any
) -> Tuple[Tuple[torch.Tensor, ...], Any]:
    """The tensors of a call of any of all-reduce's three forms, and its options or its operation."""
    given = kwargs.get("tensor", tensors)
    options = kwargs.get("op", opts)
    several = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    return several, dist.ReduceOp.SUM if options is None else options


def _operation(options: Any) -> object:
    return getattr(options, "reduceOp", options)


def _is_captured(tensor: torch.Tensor) -> bool:
    """A CUDA graph can hold NCCL's operations, but none that leave the GPU."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
