"""Puts `ReducingGroup` in the place of PyTorch's ProcessGroup where groups of backend gloo or nccl are made.

It replaces a private function of PyTorch's, and only if that is as expected.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

import torch
import torch.distributed as dist

from trainshed_reduction import process
from trainshed_reduction import settings as settings_module
from trainshed_reduction.pytorch import usage
from trainshed_reduction.pytorch.group import ReducingGroup
from trainshed_reduction.settings import Settings

_MAKER = "_new_process_group_helper"
_PARAMETERS = (
    "group_size",
    "group_rank",
    "global_ranks_in_group",
    "backend",
    "store",
    "group_name",
)
_SERVED = ("gloo", "nccl")
_OLDEST = (2, 7)
"""Older versions drop a Python Work that a group returns to C++ (pytorch/pytorch#146376)."""


def install() -> None:
    """Install the override, once; later calls do nothing. Raises settings.Unusable, OSError; RuntimeError:
    this PyTorch is unlike those known."""
    if not dist.is_available():
        raise RuntimeError("this PyTorch is built without torch.distributed")
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
    # Shows, even before there is a group, that the override is installed.
    process.reports().begin()


def _check(native: Any, group: Any) -> None:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    fault = ""
    if version < _OLDEST:
        fault = "is older than {}.{}".format(*_OLDEST)
    elif group is not dist.ProcessGroup or native is None:
        fault = "makes process groups in another way"
    elif tuple(inspect.signature(native).parameters)[: len(_PARAMETERS)] != _PARAMETERS:
        fault = "makes process groups of other things"
    if fault:
        raise RuntimeError("PyTorch {} {}".format(torch.__version__, fault))


def _replacement(c10d: Any, native: Any, settings: Settings) -> Any:
    signature = inspect.signature(native)

    @functools.wraps(native)
    def make(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs).arguments
        backend, size = str(call["backend"]).lower(), call["group_size"]
        served = size > 1 and _is_served(c10d, backend)
        usage.record.made(backend, size, served)
        if not served:
            return native(*args, **kwargs)
        before = c10d.ProcessGroup
        c10d.ProcessGroup = _Substitute
        try:
            made = native(*args, **kwargs)
        finally:
            c10d.ProcessGroup = before
        # Else this rank is not in the group, or the group was there already.
        if isinstance(made[0], ReducingGroup) and not made[0].has_begun:
            is_world = not call["global_ranks_in_group"]
            made[0].begin(settings, str(call["group_name"]), is_world)
        return made

    make.trainshed = True  # type: ignore[attr-defined]
    return make


def _is_served(c10d: Any, backend: str) -> bool:
    try:
        config = c10d.BackendConfig(c10d.Backend(backend))
        return set(config.get_device_backend_map().values()) <= set(_SERVED)
    except Exception:
        # PyTorch raises what it likes for a backend that it does not know (AttributeError, ValueError,
        # KeyError, by version), and says what is wrong with it when the group is made.
        return False


class _Kind(type):
    """The substitute's metaclass: it answers as PyTorch's class does, since other threads see the substitute
    as well."""

    def __call__(cls, *args: Any) -> object:
        # Without a store: PyTorch's own, for a backend that brings its own ranks.
        return ReducingGroup(*args) if len(args) == 3 else dist.ProcessGroup(*args)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, dist.ProcessGroup)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, dist.ProcessGroup)

    def __getattr__(cls, name: str) -> object:
        return getattr(dist.ProcessGroup, name)


class _Substitute(metaclass=_Kind):
    """Stands for ProcessGroup in the module that makes groups, while one is made."""
