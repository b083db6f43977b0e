"""The layout of an operation: which chunk goes to which reducer, and how much of the work each gets. Pure.

All ranks compute the same from the same numbers; nothing is negotiated for each operation. Bounds and shares:
BytePS (OSDI 2020), here for reducers whose links differ from the workers'.
"""

from typing import List, NamedTuple, Sequence, Tuple

SMALLEST_CHUNK = 16 << 10
_ROWS = 16
"""Of chunks, one for each lane, that an operation has at least unless it is very small: results of the last
row come back when nothing is left to send, so it should be a small part of the whole."""
_PATTERN = 64
"""Entries for each lane in the cycle that chunks are dealt out by, where shares differ."""


class Shares(NamedTuple):
    """Parts of every operation, which add up to 1: one reducer's, and that of each worker that reduces beside
    it."""

    reducer: float
    worker: float

    @property
    def is_hybrid(self) -> bool:
        return self.worker > 0


class Bounds(NamedTuple):
    """Seconds that an all-reduce takes at least, as multiples of the time in which a worker's link carries
    the tensor.

    `limit`: how many times faster than the ring it can be at most."""

    ring: float
    pure: float
    hybrid: float

    @property
    def limit(self) -> float:
        return self.ring / min(self.pure, self.hybrid)


def shares(workers: int, reducers: int, speed: float) -> Shares:
    """The shares that keep all links equally busy. `speed`: a reducer's bandwidth over a worker's.

    Workers reduce only where the reducers' bandwidth is smaller than the workers' together. With none at all,
    or for no more than two workers, the formula's degenerate cases: all by the workers, or the proportion of
    the links.
    """
    power = reducers * speed
    if reducers and power >= workers:
        return Shares(1 / reducers, 0.0)
    worker = (workers - power) / (power * (workers - 2) + workers * workers)
    return Shares((1 - workers * worker) / reducers if reducers else 0.0, worker)


def bounds(workers: int, reducers: int, speed: float) -> Bounds:
    ring = 2 * (workers - 1) / workers
    pure = max(1.0, workers / (reducers * speed)) if reducers else float("inf")
    part = shares(workers, reducers, speed).worker
    return Bounds(ring, pure, min(pure, 1 + (workers - 2) * part) if part else pure)


def break_even(workers: int) -> float:
    """Bandwidth of all reducers, as a multiple of a worker's, above which reducers alone are faster than the
    ring."""
    return workers * workers / (2 * (workers - 1)) if workers > 1 else float("inf")


def chunk_elements(total: int, itemsize: int, lanes: int, largest: int) -> int:
    """Elements of a chunk: small enough that every lane gets some of a small operation, at most `largest`
    bytes.

    `lanes`: how many the group began with, so that the loss of one changes no chunk.
    """
    size = min(max(total * itemsize // (_ROWS * lanes), SMALLEST_CHUNK), largest)
    # Whole cache lines, whatever the type.
    return max(64, size // itemsize // 64 * 64)


def dealing(weights: Sequence[float]) -> Tuple[int, ...]:
    """The cycle of lanes by which chunks are dealt out: each lane as often as its weight says, evenly spread.

    Equal weights give one entry for each lane, in order. Lanes of weight 0 get nothing.
    """
    used = [lane for lane, weight in enumerate(weights) if weight > 0]
    if len({weights[lane] for lane in used}) <= 1:
        return tuple(used)
    whole = sum(weights)
    credit = [0.0] * len(weights)
    cycle: List[int] = []
    for _ in range(_PATTERN * len(used)):
        for lane in used:
            credit[lane] += weights[lane] / whole
        lane = max(used, key=lambda each: (round(credit[each], 9), -each))
        credit[lane] -= 1
        cycle.append(lane)
    return tuple(cycle)
