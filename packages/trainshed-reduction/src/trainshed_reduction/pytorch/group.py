"""A process group for PyTorch whose all-reduce uses the reducers where they support it.

The native backends execute all other operations, in the caller's order: other collectives, reductions and
element types, and sparse, strided or small tensors. The group replaces PyTorch's own for the backends gloo
and nccl. It overrides a private function of PyTorch, and only if that function has the expected form.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any, Callable, Optional, Tuple

import torch
import torch.distributed as dist

from trainshed_reduction import process
from trainshed_reduction import settings as settings_module
from trainshed_reduction.pytorch import usage
from trainshed_reduction.pytorch.session import Sessions
from trainshed_reduction.pytorch.work import is_served, reduction_of
from trainshed_reduction.settings import Settings

# Methods that always use the native backend. Some of them do not exist in all versions of PyTorch.
_NATIVE = (
    *("allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced"),
    *("all_gather_single", "all_gather_single_coalesced", "allreduce_coalesced"),
    *("alltoall", "alltoall_base", "all_to_all_single", "barrier", "monitored_barrier"),
    *("broadcast", "gather", "scatter", "reduce", "send", "recv", "recv_anysource"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("get_group_store", "merge_remote_group", "split_group"),
)
_SHARED = ("_set_default_backend", "_set_group_name", "_set_group_desc")


class ReducingGroup(dist.ProcessGroup):
    """Replaces PyTorch's own group, and accepts the same arguments. Call `create_sessions` after the group's
    backends are registered.

    Unsupported operations go to a plain PyTorch group with the same backends, not to the base class. A call
    of the base class through a subclass holds the interpreter lock while it waits for gloo's lock. A gloo
    thread may hold that lock while it waits for the interpreter lock to release a tensor (deadlock)."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        # If a store were passed, the constructor of the base class would create an object that ignores the
        # methods of this subclass.
        super().__init__(rank, size)
        self._store = store
        self._native = dist.ProcessGroup(store, rank, size)
        self._sessions: Optional[Sessions] = None

    @property
    def is_started(self) -> bool:
        return self._sessions is not None

    def create_sessions(self, settings: Settings, name: str, is_world: bool) -> None:
        """Create the sessions of the group, which use the reducers. The group of all ranks connects to the
        reducers now. Other groups connect when they use the reducers for the first time."""
        self._sessions = Sessions(self, settings, name, self._store, is_world)
        if is_world:
            self._sessions.connect()

    def allreduce(self, *args: Any, **kwargs: Any) -> dist.Work:
        tensors, options = _call(*args, **kwargs)
        operation = getattr(options, "reduceOp", options)
        work = self._reduce(tensors[0], operation, options) if len(tensors) == 1 else None
        return self._native.allreduce(*args, **kwargs) if work is None else work

    def _reduce(self, tensor: torch.Tensor, operation: object, options: Any) -> Optional[dist.Work]:
        """Start an all-reduce with the reducers. Return None if the reducers do not support the operation."""
        sessions, reduction = self._sessions, reduction_of(operation, tensor.dtype)
        is_sparse = getattr(options, "sparseIndices", None) is not None
        if sessions is None or reduction is None or is_sparse:
            return None
        usage.record.largest = max(usage.record.largest, tensor.numel() * tensor.element_size())
        # While a CUDA graph is captured, reducers cannot be used, because the graph can only contain
        # operations on the GPU.
        is_captured = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
        if not is_served(tensor, sessions.settings.min_bytes) or is_captured:
            return None
        return sessions.of(tensor.device.type).allreduce(tensor, reduction)

    def shutdown(self) -> None:
        self._close()
        self._native.shutdown()

    def abort(self) -> None:
        self._close()
        self._native.abort()

    def _close(self) -> None:
        if self._sessions is not None:
            self._sessions.close()

    def _register_backend(self, *args: Any) -> None:
        if self.bound_device_id is not None:
            self._native.bound_device_id = self.bound_device_id
        self._native._register_backend(*args)
        super()._register_backend(*args)


def _native_method(name: str) -> Callable[..., Any]:
    """Return a method that calls the native group's method `name`."""

    def method(self: ReducingGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._native, name)(*args, **kwargs)

    return method


def _shared_method(name: str) -> Callable[..., None]:
    """Return a method that calls two methods `name`: the native group's and the base class's."""

    def method(self: ReducingGroup, *args: Any) -> None:
        getattr(self._native, name)(*args)
        getattr(dist.ProcessGroup, name)(self, *args)

    return method


for _name in _NATIVE:
    if hasattr(dist.ProcessGroup, _name):
        setattr(ReducingGroup, _name, _native_method(_name))
for _name in _SHARED:
    setattr(ReducingGroup, _name, _shared_method(_name))


def _call(
    tensors: Any = None, opts: Any = None, *_: Any, **kwargs: Any
) -> Tuple[Tuple[torch.Tensor, ...], Any]:
    """Return the tensors and the options (or the operation) of an all-reduce call. PyTorch's all-reduce
    accepts three different forms of arguments."""
    value = kwargs.get("tensor", tensors)
    options = kwargs.get("op", opts)
    several = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return several, dist.ReduceOp.SUM if options is None else options


_MAKER = "_new_process_group_helper"
_PARAMETERS = ("group_size", "group_rank", "global_ranks_in_group", "backend", "store", "group_name")
_SERVED = ("gloo", "nccl")
_MIN_VERSION = (2, 7)
"""Minimum version of PyTorch. Older versions drop a Python Work that a group returns to C++
(pytorch/pytorch#146376)."""


def install() -> None:
    """Install the override of PyTorch's process groups. Later calls do nothing. Raises settings.Unusable if
    environment variables are invalid, RuntimeError if this PyTorch is unsupported, and OSError if the token's
    file is unreadable."""
    if not dist.is_available():
        raise RuntimeError(
            "this PyTorch is built without torch.distributed, which reducers require; install another build "
            "of PyTorch"
        )
    settings = settings_module.from_environ(os.environ)
    if settings is None:
        return
    from torch.distributed import distributed_c10d as c10d

    native = getattr(c10d, _MAKER, None)
    if getattr(native, "trainshed", False):
        return
    _check(native, getattr(c10d, "ProcessGroup", None))
    usage.report_at_exit(settings.min_bytes)
    setattr(c10d, _MAKER, _replacement(c10d, native, settings))
    # Write the report file, so that the service knows that the override is installed, even if the program
    # creates no group.
    process.reports().announce()


def _check(native: Any, group: Any) -> None:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    fault = ""
    if version < _MIN_VERSION:
        fault = "is older than {}.{}".format(*_MIN_VERSION)
    elif group is not dist.ProcessGroup or native is None:
        fault = "creates process groups in an unsupported way"
    elif tuple(inspect.signature(native).parameters)[: len(_PARAMETERS)] != _PARAMETERS:
        fault = "creates process groups with unsupported parameters"
    if fault:
        raise RuntimeError("PyTorch {} {}".format(torch.__version__, fault))


def _replacement(c10d: Any, native: Any, settings: Settings) -> Any:
    signature = inspect.signature(native)

    @functools.wraps(native)
    def make(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs).arguments
        backend, size = str(call["backend"]).lower(), call["group_size"]
        served = size > 1 and _is_served(c10d, backend)
        usage.record.add_group(backend, size, served)
        if not served:
            return native(*args, **kwargs)
        before = c10d.ProcessGroup
        c10d.ProcessGroup = _Substitute
        try:
            made = native(*args, **kwargs)
        finally:
            c10d.ProcessGroup = before
        # Skip the group if this rank is not in it, or if the group already existed.
        if isinstance(made[0], ReducingGroup) and not made[0].is_started:
            is_world = not call["global_ranks_in_group"]
            made[0].create_sessions(settings, str(call["group_name"]), is_world)
        return made

    make.trainshed = True  # type: ignore[attr-defined]
    return make


def _is_served(c10d: Any, backend: str) -> bool:
    try:
        config = c10d.BackendConfig(c10d.Backend(backend))
        return set(config.get_device_backend_map().values()) <= set(_SERVED)
    except Exception:
        # For an unknown backend, PyTorch raises AttributeError, ValueError or KeyError, depending on its
        # version. Ignore the error here, because PyTorch reports it when it creates the group.
        return False


class _Kind(type):
    """The metaclass of `_Substitute`. It makes the substitute behave like PyTorch's class, because other
    threads may use the substitute at the same time."""

    def __call__(cls, *args: Any) -> object:
        # Without a store, create PyTorch's own group. PyTorch omits the store for backends that determine the
        # ranks themselves.
        return ReducingGroup(*args) if len(args) == 3 else dist.ProcessGroup(*args)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, dist.ProcessGroup)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, dist.ProcessGroup)

    def __getattr__(cls, name: str) -> object:
        return getattr(dist.ProcessGroup, name)


class _Substitute(metaclass=_Kind):
    """Replaces the name `ProcessGroup` in PyTorch's module while that module creates a group."""
