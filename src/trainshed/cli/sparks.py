"""Sparklines: numbers as a line of blocks. Pure."""

from collections.abc import Callable, Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_MIDDLE = "▄"
GAP = "·"
"""Stands where there is no number."""
_BEYOND = 2.0
"""What lies so many times the middle half's width outside of that half is drawn at the edge: one failure must not make
all else look alike."""


def spark(values: Sequence[float | None]) -> str:
    """A block per value, higher for more; equal values, or a single one, stand in the middle."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return GAP * len(values)
    low, high = _bounds(known)
    if high <= low:
        return "".join(GAP if value is None else _MIDDLE for value in values)
    steps = len(_BLOCKS) - 1
    return "".join(
        GAP
        if value is None
        else _BLOCKS[round(min(1.0, max(0.0, (value - low) / (high - low))) * steps)]
        for value in values
    )


def best_so_far(
    values: Sequence[float | None], better: Callable[[float, float], float]
) -> list[float | None]:
    """The best of each beginning. `better`: `max` or `min`."""
    found: list[float | None] = []
    best: float | None = None
    for value in values:
        if value is not None:
            best = value if best is None else better(best, value)
        found.append(best)
    return found


def grouped(
    values: Sequence[float | None], room: int, better: Callable[[float, float], float]
) -> list[float | None]:
    """At most `room` values: the best of each group of neighbours, which are about as large as each other."""
    count = len(values)
    groups = min(count, max(1, room))
    return [
        best_so_far(values[number * count // groups : (number + 1) * count // groups], better)[-1]
        for number in range(groups)
    ]


def _bounds(known: Sequence[float]) -> tuple[float, float]:
    """`known`: ascending."""
    last = len(known) - 1
    lower, upper = known[round(last * 0.25)], known[round(last * 0.75)]
    reach = _BEYOND * (upper - lower)
    if not reach:
        return known[0], known[-1]
    return max(known[0], lower - reach), min(known[-1], upper + reach)
