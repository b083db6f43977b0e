"""Describes a rank's membership in its group, and forms the group by connecting the rank to all reducers."""

from __future__ import annotations

import threading
import time
from typing import Callable, List, NamedTuple, Optional, Sequence, TypeVar

from trainshed_reduction import layout
from trainshed_reduction.client.lanes import Dial, Lane, connect_due
from trainshed_reduction.client.operations import OperationQueue, ReductionFailed
from trainshed_reduction.native import library
from trainshed_reduction.process import Reports
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import Hello


class Membership(NamedTuple):
    """Data that all objects of a rank's client share."""

    settings: Settings
    operations: OperationQueue
    #: The message HELLO, which contains the rank, its group, and the group's generation.
    hello: Hello
    #: The reports to the service; None = the service reads no reports of this process.
    reports: Optional[Reports]
    #: Function that logs a line.
    log: Callable[[str], None]


_MAX_WAIT = 0.5
_Found = TypeVar("_Found")


class Formation:
    """Forms a group. After `form`, the connections stay open until `close`, even if `form` fails."""

    def __init__(self, membership: Membership) -> None:
        """Raises ReductionFailed if the C library is missing."""
        native = library.load()
        if native is None:
            raise ReductionFailed("reducers need the package's C library: " + library.reason())
        self.library = native
        self._membership = membership
        self._settings = settings = membership.settings
        self._news = threading.Event()
        self.dial = Dial(settings, self._news.set)
        self._deadline = time.monotonic() + settings.start_seconds
        self.lanes: List[Lane] = []

    def form(self) -> None:
        """Form the group: connect to all reducers, and wait until all ranks are connected. Blocks. Raises
        ReductionFailed if reducers or ranks are missing after the time limit."""
        firsts = self.lanes = [Lane(address) for address in self._settings.reducers]
        accepted = self._await(firsts, lambda lane: lane.accept)
        self.lanes = []
        for first, accept in zip(firsts, accepted):
            others = [Lane(first.address, thread) for thread in range(1, accept.threads)]
            self.lanes += [first, *others]
        self._await(self.lanes, lambda lane: lane.start)
        for index, lane in enumerate(self.lanes):
            lane.index = index

    def describe(self) -> str:
        """Return one line with the number of reducers and the maximum speed-up. Call this after `form`."""
        return describe(self._settings, self._membership.hello.world, len(self.lanes))

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()

    def _await(self, lanes: Sequence[Lane], wanted: Callable[[Lane], Optional[_Found]]) -> List[_Found]:
        """Connect the given lanes (connections to reducers' threads), and wait until `wanted` returns a value
        for each of them. Return the values. Raises ReductionFailed if a value is missing after the time
        limit."""
        while True:
            self._news.clear()
            now = time.monotonic()
            due = connect_due(lanes, self.dial, lambda _: self._membership.hello, now)
            results = [wanted(lane) for lane in lanes]
            missing = [lane for lane, result in zip(lanes, results) if result is None]
            if not missing:
                return [result for result in results if result is not None]
            if self._membership.operations.closing:
                raise ReductionFailed("the group was closed before all of its ranks had joined")
            if now >= self._deadline:
                complaints = "; ".join(lane.complaint() for lane in missing[:8])
                raise ReductionFailed(
                    f"reducers or ranks are missing after {self._settings.start_seconds:g} s: {complaints}"
                )
            self._news.wait(max(0.0, min(self._deadline, now + _MAX_WAIT, due) - now))


def describe(settings: Settings, world: int, threads: int) -> str:
    """Return a description of a group in one line. `threads`: total number of threads of all reducers."""
    reducers = len(settings.reducers)
    # If the bandwidths are unknown, assume that reducers have sufficient bandwidth.
    speed = settings.speed or world / reducers
    return (
        f"{_count(reducers, 'reducer')} ({_count(threads, 'thread')}); at most "
        f"{layout.bounds(world, reducers, speed).limit:.2f} times the ring's speed"
    )


def _count(number: int, singular: str) -> str:
    return f"{number} {singular}{'' if number == 1 else 's'}"
