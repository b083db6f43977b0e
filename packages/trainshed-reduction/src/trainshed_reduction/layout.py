"""Computes the layout of an operation, which is the size of its chunks, and bounds on the speed of
all-reduces. Pure.

All ranks compute the same layout from the same numbers, so they need not negotiate it. The bounds are those
of BytePS (OSDI 2020), extended to reducers whose links differ from the workers' links.
"""

from typing import NamedTuple

SMALLEST_CHUNK = 16 << 10
_ROWS = 16
"""Minimum number of rows in an operation, unless the operation is very small. A row has one chunk per lane
(connection to a thread of a reducer). The link sends nothing while the results of the last row arrive, so
this row should be a small part of the operation."""


class Bounds(NamedTuple):
    """Minimum durations of an all-reduce, by the ring algorithm and by reducers. The unit is the time in
    which a worker's link transfers the tensor once."""

    ring: float
    reducers: float

    @property
    def limit(self) -> float:
        """The maximum speed-up of reducers, compared to ring all-reduce."""
        return self.ring / self.reducers


def bounds(workers: int, reducers: int, speed: float) -> Bounds:
    """Return the bounds for an all-reduce. `speed`: a reducer's bandwidth divided by a worker's."""
    return Bounds(2 * (workers - 1) / workers, max(1.0, workers / (reducers * speed)))


def chunk_elements(total: int, itemsize: int, lanes: int, largest: int) -> int:
    """Return the number of elements in a chunk of an operation. A chunk has at most `largest` bytes, and is
    so small that even small operations use all lanes (connections to reducers).

    `total`: elements of the operation. `itemsize`: bytes of an element.
    """
    size = min(max(total * itemsize // (_ROWS * lanes), SMALLEST_CHUNK), largest)
    # Round down to a multiple of 64 elements, which is a multiple of cache lines for every type of elements.
    return max(64, size // itemsize // 64 * 64)
