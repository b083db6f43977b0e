"""The order of a group's all-reduces, by reducers or native: it shows when ranks take different ways at the
same place."""

from __future__ import annotations

import itertools
import time
import weakref
from typing import List, NamedTuple, Optional

import torch
import torch.distributed as dist

_REMEMBERED = 256
_PENDING = 0.5
_UNKNOWN = 10.0
"""Seconds after which a native operation counts as one that does not end: if it is known that it has not, and
if that is not known, since nobody holds its Work any more, or it is NCCL's."""
_NAMES = ("SUM", "AVG", "MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR", "PREMUL_SUM")


class OperationOrder:
    """A `client.port.NativeOperations`: numbers its group's all-reduces, for tensors of one kind of device.

    A tensor that is too small for the reducers, or of a type that they do not know, goes to the native
    backend. A rank that does that where the others do not would wait there for ever, and they for it at the
    reducers.

    If a program's all-reduces follow one another, this is always found. If callbacks of futures issue some,
    the ranks' orders may differ, which is no error between operations that go different ways; so an order
    alone proves nothing, and only native operations that do not end for a while are reported. So if one rank
    has a native operation too many, and its next one for the reducers is as large as the others' at that
    place, wrong tensors are added up; it is reported once the others wait.
    """

    def __init__(self) -> None:
        self._ordinals = itertools.count(1)
        self._natives: List[Optional[_Native]] = [None] * _REMEMBERED

    def next(self) -> int:
        """Return the ordinal of the operation that comes now, which the reducers do."""
        return next(self._ordinals)

    def native(self, tensor: torch.Tensor, operation: object, work: "Optional[dist.Work]") -> None:
        """Record an operation that was handed to the native backend; of several tensors the first is enough.
        Every small all-reduce comes here: it costs little, and keeps neither `tensor` nor `work` alive."""
        ordinal = next(self._ordinals)
        seen = None if work is None or tensor.is_cuda else weakref.ref(work)
        self._natives[ordinal % _REMEMBERED] = _Native(
            ordinal, tensor.shape, tensor.dtype, operation, time.monotonic(), seen
        )

    def text(self, ordinal: int, *, is_passed: bool) -> str:
        native = self._natives[ordinal % _REMEMBERED]
        if native is not None and native.ordinal == ordinal:
            return native.text if native.hangs else ""
        natives = [
            operation
            for operation in self._natives
            if operation is not None and operation.ordinal < ordinal
        ]
        oldest = min(
            (operation for operation in natives if is_passed and operation.is_open), default=None
        )
        return "" if oldest is None else "{} as operation {}".format(oldest.text, oldest.ordinal)


class _Native(NamedTuple):
    ordinal: int
    shape: torch.Size
    dtype: torch.dtype
    operation: object
    since: float
    work: "Optional[weakref.ref[dist.Work]]"

    @property
    def hangs(self) -> bool:
        is_unknown = self.work is None or self.work() is None
        return time.monotonic() - self.since >= _UNKNOWN if is_unknown else self.is_open

    @property
    def is_open(self) -> bool:
        """Whether it is known not to have ended, though it had some time."""
        work = None if self.work is None else self.work()
        aged = time.monotonic() - self.since >= _PENDING
        return work is not None and aged and not work.is_completed()

    @property
    def text(self) -> str:
        """A description in the reducers' words (`reducer.rows.text`), where they have some."""
        # By ==, see `tensors.reduction_of`.
        known = (name for name in _NAMES if self.operation == getattr(dist.ReduceOp, name, None))
        name = next(known, str(self.operation))
        return "the {} of {} elements of {}".format(
            "AVERAGE" if name == "AVG" else name,
            self.shape.numel(),
            str(self.dtype).rpartition(".")[2].upper(),
        )
