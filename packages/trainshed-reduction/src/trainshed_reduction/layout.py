"""The layout of an operation: the reducer of each chunk, and bounds on the speed. Pure.

All ranks compute the same layout from the same numbers, without negotiation. Bounds follow
BytePS (OSDI 2020), extended to reducers whose links differ from the workers'.
"""

from typing import NamedTuple

SMALLEST_CHUNK = 16 << 10
_ROWS = 16
"""Minimum rows (of one chunk per lane) of an operation that is not very small. The link is idle during the
results of the last row, so this row should be a small part of the operation."""


class Bounds(NamedTuple):
    """Minimum durations of an all-reduce, as multiples of the transfer time of the tensor on a worker's
    link."""

    ring: float
    reducers: float

    @property
    def limit(self) -> float:
        """The largest possible speed-up over the ring."""
        return self.ring / self.reducers


def bounds(workers: int, reducers: int, speed: float) -> Bounds:
    """`speed`: a reducer's bandwidth over a worker's."""
    return Bounds(2 * (workers - 1) / workers, max(1.0, workers / (reducers * speed)))


def chunk_elements(total: int, itemsize: int, lanes: int, largest: int) -> int:
    """Return the elements of a chunk: at most `largest` bytes, and small enough for all lanes to share a
    small operation."""
    size = min(max(total * itemsize // (_ROWS * lanes), SMALLEST_CHUNK), largest)
    # Whole cache lines, whatever the type.
    return max(64, size // itemsize // 64 * 64)
