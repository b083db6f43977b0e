"""The layout of an operation: the reducer of each chunk, and bounds on the speed. Pure.

All ranks compute the same layout from the same numbers, without negotiation. The bounds are those of BytePS
(OSDI 2020), extended to reducers whose links differ from the workers' links.
"""

from typing import NamedTuple

SMALLEST_CHUNK = 16 << 10
_ROWS = 16
"""Minimum number of rows in an operation that is not very small. A row has one chunk per lane. While the
results of the last row arrive, the link is idle, so this row should be a small part of the operation."""


class Bounds(NamedTuple):
    """Minimum durations of an all-reduce, as multiples of the transfer time of the tensor on a worker's
    link."""

    ring: float
    reducers: float

    @property
    def limit(self) -> float:
        """The maximum speed-up compared to ring all-reduce."""
        return self.ring / self.reducers


def bounds(workers: int, reducers: int, speed: float) -> Bounds:
    """Return the bounds. `speed`: a reducer's bandwidth divided by a worker's."""
    return Bounds(2 * (workers - 1) / workers, max(1.0, workers / (reducers * speed)))


def chunk_elements(total: int, itemsize: int, lanes: int, largest: int) -> int:
    """Return the number of elements of a chunk. A chunk has at most `largest` bytes. It is small enough that
    all lanes share even a small operation."""
    size = min(max(total * itemsize // (_ROWS * lanes), SMALLEST_CHUNK), largest)
    # A multiple of 64 elements is a multiple of cache lines, whatever the type.
    return max(64, size // itemsize // 64 * 64)
