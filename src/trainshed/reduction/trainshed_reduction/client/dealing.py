"""To which lane and position each chunk goes, and in which order a rank sends them. Pure.

Lanes and positions are the same on all ranks; the order over the lanes is a rank's own (stagger): each begins every row
of chunks somewhere else, so that the ranks do not all send to one reducer at a time.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

from trainshed_reduction import layout


class Place(NamedTuple):
    """`row`: for `port.Frame`. Its whole part is the same on all ranks."""

    lane: int
    row: float


class Dealer:
    """Deals out chunk after chunk by the weights of the lanes; lanes of weight 0 get none. A row has as many chunks as
    there are lanes to get some."""

    def __init__(self, weights: Sequence[float], rank: int, world: int) -> None:
        self._cycle = layout.dealing(weights)
        self._breadth = len(set(self._cycle))
        self._shift = rank * self._breadth // world
        self._dealt = 0

    def next(self) -> Place:
        lane = self._cycle[self._dealt % len(self._cycle)]
        row, place = divmod(self._dealt, self._breadth)
        self._dealt += 1
        return Place(lane, row + (place - self._shift) % self._breadth / self._breadth)
