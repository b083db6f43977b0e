"""Promises about algorithms that draw: judged by how many seeds keep them, not by one.

What an algorithm comes to in one seed hangs on the last bit of each product, and that on the processor
(`OPENBLAS_CORETYPE`). So a promise is made for a share of the seeds, and a test says how few of them would be
too few to be chance (docs/adr/0018).
"""

from collections.abc import Callable
from math import comb

_CHANCE = 1e-6
"""How often a test may fail although its promise holds."""


def fewest(seeds: int, share: float) -> int:
    """The number of kept promises, of `seeds`, that fewer than it are chance in less than one of a million
    times if a share of at least `share` keeps it."""
    below = 0.0
    for kept in range(seeds + 1):
        below += comb(seeds, kept) * share**kept * (1.0 - share) ** (seeds - kept)
        if below >= _CHANCE:
            return kept
    return seeds


def often(keeps: Callable[[int], bool], *, share: float, seeds: int) -> None:
    """Fail unless enough of the seeds, from 0 on, keep a promise. Ends as soon as enough have, so a promise
    that is mostly kept costs little."""
    enough = fewest(seeds, share)
    assert enough > 0, "so few seeds prove nothing: any number of failures would be chance"
    kept = 0
    for seed in range(seeds):
        kept += keeps(seed)
        if kept == enough:
            return
    raise AssertionError(
        f"{kept} of {seeds} seeds keep it; {enough} would, if {share:.0%} of all do"
    )
