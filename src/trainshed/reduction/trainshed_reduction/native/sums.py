"""The sums of `arithmetic`, in C."""

from __future__ import annotations

import ctypes

from trainshed_reduction.arithmetic import Buffer
from trainshed_reduction.native.library import Library
from trainshed_reduction.wire import DType, Reduction


class NativeKernels:
    """The `arithmetic.Kernels` in C. Raises ValueError for buffers whose lengths do not go together."""

    def __init__(self, library: Library) -> None:
        self._widen = library.functions.sums_widen
        self._add = library.functions.sums_add
        self._finish = library.functions.sums_finish

    def widen(self, dtype: DType, accumulator: Buffer, payload: Buffer) -> None:
        total, source = _bytes(accumulator), _bytes(payload)
        self._widen(dtype, total, source, _count(dtype, len(total), len(source)))

    def add(self, dtype: DType, accumulator: Buffer, payload: Buffer) -> None:
        total, source = _bytes(accumulator), _bytes(payload)
        self._add(dtype, total, source, _count(dtype, len(total), len(source)))

    def finish(
        self,
        dtype: DType,
        reduction: Reduction,
        ranks: int,
        accumulator: Buffer,
        result: Buffer,
    ) -> None:
        total, target = _bytes(accumulator), _bytes(result)
        count = _count(dtype, len(total), len(target))
        self._finish(dtype, reduction is Reduction.AVERAGE, ranks, total, target, count)


def _bytes(buffer: Buffer) -> "ctypes.Array[ctypes.c_char]":
    """Its memory, held as long as this lives."""
    return (ctypes.c_char * memoryview(buffer).nbytes).from_buffer(buffer)


def _count(dtype: DType, total: int, payload: int) -> int:
    """Elements of `payload` bytes, and of as many in an accumulator of `total`."""
    count = payload // dtype.itemsize
    if payload != count * dtype.itemsize or total != count * max(dtype.itemsize, 4):
        raise ValueError("{} bytes of {} do not go with {}".format(payload, dtype.name, total))
    return count
