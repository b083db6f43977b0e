"""The sums in C, over buffers: the same as a reducer makes of its ranks' chunks.

Half types are added in fp32 and rounded once, to the nearest, ties to even; a NaN becomes 0x7E00 (fp16) or
0x7FC0 (bf16), whatever its bits were. Integers wrap around.
"""

from __future__ import annotations

import ctypes
from typing import Sequence, Union

from trainshed_reduction.native.library import Library
from trainshed_reduction.wire import DType, Reduction

Buffer = Union[bytearray, memoryview]
"""Contiguous, writable, a whole number of elements."""


def add_up(
    library: Library,
    dtype: DType,
    reduction: Reduction,
    payloads: Sequence[Buffer],
    result: Buffer,
) -> None:
    """Set `result` to the sum or the mean of `payloads`, added in their order, which is the ranks'. Raises
    ValueError: their lengths differ, or are no whole number of elements."""
    functions = library.functions
    size = memoryview(result).nbytes
    count = size // dtype.itemsize
    if any(memoryview(buffer).nbytes != count * dtype.itemsize for buffer in (result, *payloads)):
        raise ValueError(f"payloads and result must be equally long, of whole {dtype.name}")
    target = _bytes(result)
    total = target
    if dtype.itemsize == 2:
        total = (ctypes.c_char * (2 * size))()
        functions.sums_widen(dtype, total, _bytes(payloads[0]), count)
    else:
        memoryview(result).cast("B")[:] = memoryview(payloads[0]).cast("B")
    for payload in payloads[1:]:
        functions.sums_add(dtype, total, _bytes(payload), count)
    average = reduction is Reduction.AVERAGE
    functions.sums_finish(dtype, average, len(payloads), total, target, count)


def _bytes(buffer: Buffer) -> ctypes.Array[ctypes.c_char]:
    """Return the buffer's memory, which is held as long as the result lives."""
    return (ctypes.c_char * memoryview(buffer).nbytes).from_buffer(buffer)
