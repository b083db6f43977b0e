"""The summands, which differ in each operation, and the expected sums.

Every rank draws its numbers from a seed. Each operation rotates them by a different amount. A sum of another
operation is therefore wrong, but the expected sum requires no new addition. NumPy has no bfloat16, so only
its upper 16 bits are stored.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_STORED: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
_EPSILON = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Relative error of one rounding, by type."""
_STRIDE = 4099
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Expected:
    """The sum over all ranks.

    `ordered`: computed in the order of ranks, in float32, and rounded once. `exact`: computed in float64.
    `tolerance`: maximum difference from `exact` in any order.
    """

    ordered: Array
    exact: Array
    tolerance: float


@dataclass(frozen=True, slots=True)
class Finding:
    """The difference between a result and the expected sum. `largest`, `rms`: of the difference from the
    exact sum."""

    ordered: bool
    largest: float
    rms: float


def itemsize(dtype: str) -> int:
    return np.dtype(_STORED[dtype]).itemsize


def draw_numbers(rank: int, nbytes: int, dtype: str) -> Array:
    """Return the numbers of a rank: `nbytes` bytes of normally distributed numbers."""
    count = nbytes // itemsize(dtype)
    return _to_stored_type(np.random.default_rng(rank).standard_normal(count, dtype=np.float32), dtype)


def expected_sum(world: int, nbytes: int, dtype: str) -> Expected:
    total = _widen(draw_numbers(0, nbytes, dtype)).copy()
    exact, size = total.astype(np.float64), np.abs(total)
    for rank in range(1, world):
        more = _widen(draw_numbers(rank, nbytes, dtype))
        total += more
        exact += more
        size += np.abs(more)
    return Expected(_to_stored_type(total, dtype), exact, world * _EPSILON[dtype] * float(size.max()))


def rotate(target: Array, source: Array, number: int) -> None:
    """Fill `target` with the summands of the operation `number`."""
    shift = number * _STRIDE % len(source)
    target[: len(source) - shift] = source[shift:]
    target[len(source) - shift :] = source[:shift]


def compare(result: Array, dtype: str, number: int, right: Expected) -> Finding:
    """Compare every element with the expected sum of the operation `number`."""
    shift = number * _STRIDE % len(result)
    split = len(result) - shift
    halves = ((result[:split], slice(shift, None)), (result[split:], slice(None, shift)))
    ordered = all(_same(part, right.ordered[where]) for part, where in halves)
    largest = squares = 0.0
    for part, where in halves:
        exact = right.exact[where]
        for first in range(0, len(part), _BLOCK):
            block = slice(first, first + _BLOCK)
            difference = _widen(part[block]) - exact[block]
            # NaN counts as a large difference.
            largest = max(largest, float(np.nan_to_num(np.abs(difference), nan=np.inf).max()))
            squares += float(difference @ difference)
    return Finding(ordered, largest, (squares / len(result)) ** 0.5)


def _same(array: Array, other: Array) -> bool:
    """Compare bit by bit. The values 0 and -0 differ."""
    bits = f"u{array.itemsize}"
    return np.array_equal(array.view(bits), other.view(bits))


def _widen(values: Array) -> Array:
    """Convert values to float32, which represents all numbers of these types."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)


def _to_stored_type(values: Array, dtype: str) -> Array:
    """Convert values to the stored type. Round to nearest, ties to even."""
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values.astype(_STORED[dtype])
