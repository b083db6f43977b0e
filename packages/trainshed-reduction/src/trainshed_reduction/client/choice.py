"""Chooses the way of a group's sums by what its ranks have measured: to the reducers, or natively. Pure.

All ranks ask before every operation that reducers could do, in the same order. When they have to compare,
they exchange what each has measured since the last time; from the same numbers all choose the same way, even
if one is slow or has lost a reducer. Ways are tried in turns, a few operations each, so that drift affects
both alike: when the group is young, and now and then. Reducers are chosen only where they are faster by more
than noise: to add them to a job must never cost time.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

UNMEASURED = 2
"""The first operations, which are not measured: connections are young, memory is new."""
LEAST = 3
"""Operations that a way is tried for at a time, at least."""
TURNS = 2
LONGEST = 6
"""How often LEAST is doubled where nothing could be measured: operations that overlap without a pause are one
sample, and only if all of them went one way."""
GAIN = 0.05
"""How much better than the native way, as a part of its time, reducers must be to be taken."""
REST = 1000
"""Operations until both ways are tried again."""
COST = 0.005
"""Part of all time that trials may take, by what is known of the ways."""
_MOST_SAMPLES = 1000


class Way(NamedTuple):
    """How an operation is summed. `rate`: by reducers, with as much under way as suits so many bytes per
    second; 0: as the settings' bandwidth says; None: natively."""

    rate: Optional[int]

    @property
    def is_native(self) -> bool:
        return self.rate is None


NATIVE = Way(None)


class Measured(NamedTuple):
    """A way's times on one rank since the ranks compared last. `cost`: picoseconds per byte, the lower
    quartile of its samples; 0: there are none."""

    cost: int
    samples: int


class Outcome(NamedTuple):
    """What was chosen after a trial. `costs`: by way, picoseconds per byte of the fastest rank."""

    way: Way
    costs: Dict[Way, int]
    #: The way has changed between reducers and native.
    is_new: bool


class Choice:
    """Decides the way of each operation, and when the ranks compare. Every rank makes the same calls with the
    same arguments; for `compare` they first exchange their measurements."""

    def __init__(self) -> None:
        #: The way of operations outside trials.
        self.way = Way(0)
        #: The ways that are measured until the ranks compare next; () = none is, until they are tried again.
        self.ways: Tuple[Way, ...] = ()
        #: The number of the period of measuring: what was measured in earlier ones does not count.
        self.period = 0
        #: The blocks of operations that are left of this period, by way; the current one first.
        self._blocks: Deque[Way] = deque((self.way,))
        self._reducers = self.way
        self._least = UNMEASURED
        self._count = 0
        self._first = 0
        self._doublings = 0

    @property
    def current(self) -> Way:
        """The way of the operation that `next` was called for last."""
        return self._blocks[0]

    def next(self, nbytes: int) -> bool:
        """Call this once before each operation, with its size: whether the ranks have to `compare` now,
        before it begins. After that `current` is its way."""
        self._count += 1
        if self._count == 1:
            self._first = nbytes
        # Sizes repeat from step to step: a block ends where its first size comes again.
        repeats = nbytes == self._first or self._count > 4 * self._least
        if self._count <= self._least or not repeats:
            return False
        self._count, self._first = 1, nbytes
        if not self.ways:
            self._try()
        elif len(self._blocks) > 1:
            self._blocks.popleft()
        else:
            return True
        return False

    def compare(self, reports: Sequence[Sequence[Measured]]) -> Optional[Outcome]:
        """Take what every rank has measured of each of `ways`, by rank, the same on all ranks. Returns the
        outcome if that ends a trial, else None."""
        costs: Dict[Way, int] = {}
        for index, way in enumerate(self.ways):
            known = [report[index].cost for report in reports if report[index].samples]
            if known:
                costs[way] = min(known)
        if len(costs) < len(self.ways):
            self._doublings += 1
            if self._doublings <= LONGEST:
                # Not every way could be measured: try with more operations at a time.
                self._begin(self.ways, 2 * self._least)
            else:
                self._wait(REST)
            return None
        if len(costs) == 1:
            # How much is under way depends on the rate, so that it is measured first.
            self._reducers = self.way = Way(10**12 // max(1, costs[self.way]))
            self._try()
            return None
        return self._settle(costs)

    def _settle(self, costs: Dict[Way, int]) -> Outcome:
        reducers, native = costs[self._reducers], costs[NATIVE]
        before, self.way = self.way, self._reducers
        if reducers > (1 - GAIN) * native:
            self.way = NATIVE
        # The much slower one of the two is tried more rarely.
        lost = max(reducers, native) / max(1, min(reducers, native)) - 1
        self._wait(max(REST, int(TURNS * LEAST * lost / COST)))
        return Outcome(self.way, costs, self.way.is_native != before.is_native)

    def _try(self) -> None:
        self._doublings = 0
        self._begin((self._reducers, NATIVE) if self._reducers.rate else (self._reducers,), LEAST)

    def _begin(self, ways: Tuple[Way, ...], least: int) -> None:
        self.ways = ways
        self.period += 1
        self._least = least
        self._blocks = deque(ways * (TURNS if len(ways) > 1 else 1))

    def _wait(self, operations: int) -> None:
        """Go on with the chosen way until it is time to try both again."""
        self.ways = ()
        self.period += 1
        self._least = operations
        self._blocks = deque((self.way,))


class Stopwatch:
    """Measures ways on one rank. A sample is the time per byte from a moment when nothing was under way to
    the next one, if all that was under way between them went one way. Thread-safe. Times are seconds of one
    clock, whichever it is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._began = 0.0
        self._bytes = 0
        self._key: Optional[Tuple[int, Way]] = None
        self._period = 0
        self._samples: Dict[Way, List[float]] = {}

    def began(self, period: int, way: Way, nbytes: int, now: float) -> None:
        key = (period, way)
        with self._lock:
            if period != self._period:
                self._period = period
                self._samples = {}
            if not self._under_way:
                self._began, self._bytes, self._key = now, 0, key
            elif self._key != key:
                self._key = None
            self._under_way += 1
            self._bytes += nbytes

    def ended(self, now: float) -> None:
        with self._lock:
            self._under_way -= 1
            if self._under_way or self._key is None or self._key[0] != self._period:
                return
            cost = (now - self._began) / self._bytes * 1e12
            samples = self._samples.setdefault(self._key[1], [])
            if len(samples) < _MOST_SAMPLES:
                samples.append(cost)

    def measured(self, ways: Sequence[Way]) -> List[Measured]:
        """Return what was measured of each way in the current period."""
        with self._lock:
            return [_summary(self._samples.get(way, ())) for way in ways]


def _summary(costs: Sequence[float]) -> Measured:
    """Take the lower quartile, not the mean: a rank that waits for a slow one measures that one's delay."""
    if not costs:
        return Measured(0, 0)
    return Measured(max(1, int(sorted(costs)[len(costs) // 4])), len(costs))
