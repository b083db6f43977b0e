"""The order of a group's all-reduces, whoever does them: ranks that take different ways at one place are told
so by it."""

from __future__ import annotations

import itertools
import time
import weakref
from typing import List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

_REMEMBERED = 256
_PENDING = 0.5
_UNKNOWN = 10.0
"""Seconds after which an operation of the native backend is one that does not end: if it is known that it has
not, and if that cannot be known, since nobody holds its Work any more, or it is NCCL's."""


class OperationOrder:
    """A `client.port.NativeOperations`: which of its group's all-reduces each is, whoever does it, for
    tensors of one kind of device. Ranks that take different ways at one place are told by it.

    A tensor that is too small for the reducers, or of a type that they do not know, goes to the native
    backend. A rank that does that where the others do not would wait there for ever, and they for it at the
    reducers.

    Programs whose all-reduces follow one another are told for sure. Where callbacks of futures issue some,
    the ranks' orders may differ, and nothing is wrong with that if they do not use the same way; so an order
    alone proves nothing, and only what the native backend has for a while without an end is told of. So where
    one rank has a native operation too many, and a next one for the reducers that is as large as the others'
    at that place, those two are added up; it is told when the others wait.
    """

    def __init__(self) -> None:
        self._ordinals = itertools.count(1)
        self._natives: List[Optional[_Native]] = [None] * _REMEMBERED

    def next(self) -> int:
        """The ordinal of the one that comes now, which the reducers do."""
        return next(self._ordinals)

    def native(
        self, tensors: Tuple[torch.Tensor, ...], operation: object, work: "Optional[dist.Work]"
    ) -> None:
        """One has been handed to the native backend. In the way of every small all-reduce: nothing is made of
        it yet, and neither tensors nor `work` are kept alive."""
        ordinal = next(self._ordinals)
        first = tensors[0]
        form = "sparse" if first.layout is not torch.strided else ""
        if not form and not first.is_contiguous():
            form = "strided"
        self._natives[ordinal % _REMEMBERED] = _Native(
            ordinal,
            len(tensors),
            first.shape,
            first.dtype,
            form,
            operation,
            time.monotonic(),
            None if work is None or first.is_cuda else weakref.ref(work),
        )

    def text(self, ordinal: int, *, is_passed: bool) -> str:
        native = self._natives[ordinal % _REMEMBERED]
        if native is not None and native.ordinal == ordinal:
            return native.text if native.hangs else ""
        earlier = (each for each in self._natives if each is not None and each.ordinal < ordinal)
        open_ones = [each for each in earlier if each.is_open] if is_passed else []
        if not open_ones:
            return ""
        oldest = min(open_ones)
        return "{} as operation {}".format(oldest.text, oldest.ordinal)


class _Native(NamedTuple):
    ordinal: int
    tensors: int
    shape: torch.Size
    dtype: torch.dtype
    form: str
    operation: object
    since: float
    work: "Optional[weakref.ref[dist.Work]]"

    @property
    def hangs(self) -> bool:
        if self.work is None or self.work() is None:
            return time.monotonic() - self.since >= _UNKNOWN
        return self.is_open

    @property
    def is_open(self) -> bool:
        """Whether it is sure that it has not ended, though it had some time."""
        work = None if self.work is None else self.work()
        aged = time.monotonic() - self.since >= _PENDING
        return work is not None and aged and not work.is_completed()

    @property
    def text(self) -> str:
        """In the reducers' words, where they have some."""
        text = "the {} of {} elements of {}".format(
            _name(self.operation),
            self.shape.numel(),
            str(self.dtype).rpartition(".")[2].upper(),
        )
        if self.form:
            text += " in a {} tensor".format(self.form)
        more = self.tensors - 1
        return "{} and {} more tensor{}".format(text, more, "s" * (more > 1)) if more else text


def _name(operation: object) -> str:
    """`operation`: of AllreduceOptions. By ==, see `tensors.reduction_of`."""
    known = ("SUM", "AVG", "MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR", "PREMUL_SUM")
    for name in known:
        if operation == getattr(dist.ReduceOp, name, None):
            return "AVERAGE" if name == "AVG" else name
    return str(operation)
