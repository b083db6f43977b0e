"""Sums of chunks: the same bytes whoever adds them, NumPy here or the C library in its place.

Both are `Kernels`: functions over buffers, which know nothing of frames or of who has come. Half types are
added in fp32 and rounded once, to the nearest, ties to even; what is no number then is 0x7E00 (fp16) or
0x7FC0 (bf16), whatever bits went in. Integers wrap around. Numbers are little-endian, and so must the machine
be.
"""

from __future__ import annotations

from typing import Protocol, Union

import numpy as np

from trainshed_reduction.wire import DType, Reduction

Buffer = Union[bytearray, memoryview]
"""Contiguous, writable, a whole number of elements."""


class Kernels(Protocol):
    """A chunk's sum is made of its ranks' payloads in their order: rank 0's is, or is widened to, the
    accumulator; each further one is added; `finish` makes the result. `dtype`: of the payloads and the
    result. Not thread-safe."""

    def widen(self, dtype: DType, accumulator: Buffer, payload: Buffer) -> None:
        """fp32 `accumulator` = `payload`; for half types only, twice the payload's bytes."""
        ...

    def add(self, dtype: DType, accumulator: Buffer, payload: Buffer) -> None:
        """`accumulator` += `payload`; an accumulator of fp32 for half types, else of the type itself."""
        ...

    def finish(
        self,
        dtype: DType,
        reduction: Reduction,
        ranks: int,
        accumulator: Buffer,
        result: Buffer,
    ) -> None:
        """`result` = `accumulator`, divided by `ranks` before it is rounded if it is an AVERAGE (never of
        integers). Of full types both are the same buffer; of half types the accumulator's contents are
        lost."""
        ...


def kernels() -> Kernels:
    """The C library's where there is one."""
    from trainshed_reduction.native import library

    found = library.load()
    if found is None:
        return NumpyKernels()
    from trainshed_reduction.native.sums import NativeKernels

    return NativeKernels(found)


_FULL = {
    DType.FLOAT32: np.dtype("<f4"),
    DType.FLOAT64: np.dtype("<f8"),
    DType.INT32: np.dtype("<i4"),
    DType.INT64: np.dtype("<i8"),
}
_REBIAS = np.float32(2.0**112)
"""What makes a fp16's exponent, read as one of fp32, the right one; exact, for its subnormals as well."""
_BEYOND = np.float32(65536.0)
"""From here on, after that, stand the infinities and what is no number."""
_SILENT = np.errstate(all="ignore")
"""An infinity is a result like another: nobody needs a warning."""


class NumpyKernels:
    """NumPy's own half additions and conversions take an element at a time; these go by whole arrays of
    integers."""

    def __init__(self) -> None:
        self._scratch = np.empty(0, np.uint32)

    def widen(self, dtype: DType, accumulator: Buffer, payload: Buffer) -> None:
        self._widened(dtype, payload, np.frombuffer(accumulator, np.uint32))

    @_SILENT
    def add(self, dtype: DType, accumulator: Buffer, payload: Buffer) -> None:
        full = _FULL.get(dtype)
        if full is None:
            total = np.frombuffer(accumulator, np.float32)
            total += self._widened(dtype, payload, self._room(len(total)))
        else:
            total = np.frombuffer(accumulator, full)
            total += np.frombuffer(payload, full)

    @_SILENT
    def finish(
        self,
        dtype: DType,
        reduction: Reduction,
        ranks: int,
        accumulator: Buffer,
        result: Buffer,
    ) -> None:
        total = np.frombuffer(accumulator, _FULL.get(dtype, np.float32))
        if reduction is Reduction.AVERAGE:
            total /= total.dtype.type(ranks)
        if dtype is DType.FLOAT16:
            np.copyto(np.frombuffer(result, np.float16), total, casting="unsafe")
        elif dtype is DType.BFLOAT16:
            bits = total.view(np.uint32)
            rounded = self._room(len(bits))
            np.right_shift(bits, 16, out=rounded)
            rounded &= np.uint32(1)
            rounded += np.uint32(0x7FFF)
            rounded += bits
            np.frombuffer(result, np.uint16)[:] = rounded.view(np.uint16)[1::2]
        else:
            return
        if np.isnan(total.max(initial=0)):
            quiet = 0x7E00 if dtype is DType.FLOAT16 else 0x7FC0
            np.frombuffer(result, np.uint16)[np.isnan(total)] = quiet

    def _room(self, count: int) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
        if len(self._scratch) < count:
            self._scratch = np.empty(count, np.uint32)
        return self._scratch[:count]

    def _widened(
        self,
        dtype: DType,
        payload: Buffer,
        room: "np.ndarray[tuple[int], np.dtype[np.uint32]]",
    ) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
        """`room`, filled with `payload` as fp32."""
        numbers = room.view(np.float32)
        if dtype is DType.BFLOAT16:
            np.copyto(room, np.frombuffer(payload, np.uint16))
            np.left_shift(room, 16, out=room)
            return numbers
        signed = room.view(np.int32)
        np.copyto(signed, np.frombuffer(payload, np.int16))
        np.left_shift(signed, 13, out=signed)
        signed &= np.int32(-0x70000001)  # The sign was drawn over three bits more.
        numbers *= _REBIAS
        if len(numbers) and not -_BEYOND < numbers.min() <= numbers.max() < _BEYOND:
            beyond = np.abs(numbers) >= _BEYOND
            numbers[beyond] = np.frombuffer(payload, np.float16)[beyond]
        return numbers
