"""The layout of an operation: which chunk goes to which reducer, and how fast that can be. Pure.

All ranks compute the same from the same numbers; nothing is negotiated for each operation. Bounds follow
BytePS (OSDI 2020), extended to reducers whose links differ from the workers'.
"""

from typing import NamedTuple

SMALLEST_CHUNK = 16 << 10
_ROWS = 16
"""Least rows (of one chunk for each lane) of an operation that is not very small: the results of the last row
come back when nothing is left to send, so it should be a small part of the whole."""


class Bounds(NamedTuple):
    """Least durations of an all-reduce, as multiples of the time in which a worker's link carries the
    tensor."""

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
    """Return the elements of a chunk: few enough that every lane gets some of a small operation, and at most
    `largest` bytes."""
    size = min(max(total * itemsize // (_ROWS * lanes), SMALLEST_CHUNK), largest)
    # Whole cache lines, whatever the type.
    return max(64, size // itemsize // 64 * 64)
