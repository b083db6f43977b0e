"""Sums by NumPy are the exact ones, rounded as IEEE 754 says. spec/reduction#reports."""

import numpy as np
import pytest

from trainshed_reduction.arithmetic import NumpyKernels
from trainshed_reduction.wire import DType, Reduction

ALL = np.arange(1 << 16, dtype=np.uint16)
"""Every fp16 and bf16 that there is."""


def _widened(dtype: DType) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    accumulator = bytearray(4 * len(ALL))
    NumpyKernels().widen(dtype, accumulator, bytearray(ALL.tobytes()))
    return np.frombuffer(accumulator, np.float32)


def _rounded(
    dtype: DType, values: "np.ndarray[tuple[int], np.dtype[np.float32]]"
) -> "np.ndarray[tuple[int], np.dtype[np.uint16]]":
    accumulator, result = bytearray(values.tobytes()), bytearray(2 * len(values))
    NumpyKernels().finish(dtype, Reduction.SUM, 1, accumulator, result)
    return np.frombuffer(result, np.uint16)


def test_every_fp16_is_widened_exactly() -> None:
    """spec/reduction#exactness: subnormals, both zeros and infinities too."""
    want = ALL.view(np.float16).astype(np.float32)
    got = _widened(DType.FLOAT16)
    numbers = ~np.isnan(want)
    assert np.array_equal(got[numbers].view(np.uint32), want[numbers].view(np.uint32))
    assert np.isnan(got[~numbers]).all()


def test_every_bf16_is_widened_exactly() -> None:
    """spec/reduction#exactness."""
    assert np.array_equal(_widened(DType.BFLOAT16).view(np.uint32), ALL.astype(np.uint32) << 16)


@pytest.mark.parametrize(("dtype", "nan"), [(DType.FLOAT16, 0x7E00), (DType.BFLOAT16, 0x7FC0)])
def test_what_is_representable_stays(dtype: DType, nan: int) -> None:
    """spec/reduction: and what is no number has one form."""
    values = _widened(dtype)
    assert np.array_equal(_rounded(dtype, values), np.where(np.isnan(values), nan, ALL))


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_the_nearest_is_taken_and_of_two_the_even_one(dtype: DType) -> None:
    """spec/reduction#exactness: one rounding: exactly between two neighbours, and one step of fp32 to either
    side of that."""
    exact = _widened(dtype)
    finite = np.flatnonzero(np.isfinite(exact[:-1]) & np.isfinite(exact[1:]))
    below = ALL[finite]
    middle = ((exact[finite].astype(np.float64) + exact[finite + 1]) / 2).astype(np.float32)
    even = below + (below & 1)
    assert np.array_equal(_rounded(dtype, middle), even)
    assert np.array_equal(_rounded(dtype, np.nextafter(middle, exact[finite])), below)
    assert np.array_equal(_rounded(dtype, np.nextafter(middle, exact[finite + 1])), below + 1)


def test_too_much_is_infinite() -> None:
    """spec/reduction: 65520 is the first that is nearer to what would come after the greatest fp16."""
    values = np.array([65519.996, 65520, -65520, 3.4e38], np.float32)
    assert _rounded(DType.FLOAT16, values).tolist() == [0x7BFF, 0x7C00, 0xFC00, 0x7C00]
    assert _rounded(DType.BFLOAT16, values[3:]).tolist() == [0x7F80]


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
def test_an_average_is_divided_once(dtype: DType) -> None:
    """spec/reduction#exactness: AVG: a true division of the sum."""
    kind = np.dtype(dtype.name.lower())
    total, more = np.array([1, 1e30, 7], kind), np.array([1, 2, 3], kind)
    data = bytearray(total.tobytes())
    kernels = NumpyKernels()
    kernels.add(dtype, data, bytearray(more.tobytes()))
    kernels.finish(dtype, Reduction.AVERAGE, 3, data, data)
    assert data == ((total + more) / kind.type(3)).tobytes()


@pytest.mark.parametrize("dtype", [DType.INT32, DType.INT64])
def test_integers_wrap_around(dtype: DType) -> None:
    """spec/reduction#exactness: as every native backend's do."""
    kind = np.dtype(dtype.name.lower())
    data = bytearray(np.array([np.iinfo(kind).max, -5], kind).tobytes())
    NumpyKernels().add(dtype, data, bytearray(np.array([1, 3], kind).tobytes()))
    assert np.frombuffer(data, kind).tolist() == [np.iinfo(kind).min, -2]
