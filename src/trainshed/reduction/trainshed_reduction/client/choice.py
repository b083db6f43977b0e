"""Which way a group's sums go, by what its ranks have measured: to the reducers, with how much under way, or
natively. Pure.

All ranks ask before every operation that reducers could do, in the same order, so each is at the same
place. Where they are to compare, they exchange what each has measured since the last time; from equal
numbers all come to the same way, whoever is slow or has lost a reducer. Ways are tried in turns, a few
operations each, so that what drifts hits all alike: when the group is young, when its sums get slower than
they were, and now and then. Reducers are taken only where they are faster by more than noise: who adds them
must never pay for it with time.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

UNMEASURED = 2
"""The first operations: connections are young, memory is new."""
LEAST = 3
"""Operations that a way is tried for at a time, at least."""
TURNS = 2
LONGEST = 6
"""How often they are doubled where nothing could be measured: many operations under way at once, without a
pause in which none is, all belong to one way or say nothing."""
WIDER = 4
WIDENINGS = 3
NOISE = 0.03
"""How much better, as a part of its time, another credit must be to be taken."""
GAIN = 0.05
"""How much better than the native way, as a part of its time, reducers must be to be taken."""
CLEAR = 2.0
"""How many times as fast as reducers the native way must be, or the other way round, to settle it after one
turn."""
SLOWER = 0.25
"""How much slower than it was a way must be to have all tried again before it is time."""
LOOK = 100
"""Operations between two looks at that."""
REST = 500
LONGEST_REST = 16_000
"""Operations until all is tried again: the shortest; doubled each time that nothing has changed, up to
this."""
CLOSE = 0.2
"""How near to each other, as a part of their time, reducers and the native way are tried again soon:"""
SOONER = 10
"""after that part of those operations."""
EARLY = 0.2
"""Part of that which has to be over before slower sums have all tried again."""
COST = 0.005
"""Part of all time that trying again may take, by what is known of the ways."""


class Pace(NamedTuple):
    """How much reducers have under way.

    `rate`: bytes per second that a worker's sums were measured at; 0: nothing is known but what the
    settings say. `factor`: times the credit that belongs to that rate."""

    rate: int = 0
    factor: int = 1


class Way(NamedTuple):
    """`pace`: None: natively."""

    pace: Optional[Pace]

    @property
    def is_native(self) -> bool:
        return self.pace is None


NATIVE = Way(None)


class Measured(NamedTuple):
    """A way's times on one rank since the ranks compared last. `cost`: picoseconds a byte, a quarter of its
    samples took less; 0: there are none."""

    cost: int
    samples: int


class Outcome(NamedTuple):
    """What was chosen after a trial. `costs`: of the fastest rank, picoseconds a byte, by way."""

    way: Way
    costs: Dict[Way, int]
    #: Another one than before.
    is_new: bool


class Choice:
    """The way of each operation, and when the ranks compare. Every rank makes the same calls with the same
    arguments; only what `compare` gets do they find out together."""

    def __init__(self, *, may_widen: bool = True) -> None:
        self._may_widen = may_widen
        #: Of the operations that are no trial.
        self.way = Way(Pace())
        #: Those that are measured until the ranks compare next.
        self.ways: Tuple[Way, ...] = (self.way,)
        #: How often something else was begun to be measured: what was measured before counts no more.
        self.period = 0
        #: What is left of this period, the block that is under way first.
        self._blocks: Deque[Way] = deque(self.ways)
        self._least = UNMEASURED
        self._count = 0
        self._first = 0
        self._is_young = True
        self._is_trial = True
        self._is_first_turn = True
        self._doublings = 0
        self._widenings = 0
        #: At which reducers were the fastest.
        self._pace = Pace()
        #: Of this trial so far.
        self._costs: Dict[Way, int] = {}
        self._reference = 0
        self._rest = REST
        self._left = 0
        self._gone = 0

    @property
    def current(self) -> Way:
        """Of the operation that `next` was called for last."""
        return self._blocks[0]

    def next(self, nbytes: int) -> bool:
        """To be called once before each operation, with its size: whether the ranks have to `compare` now,
        before it is begun. After that `current` says its way."""
        self._count += 1
        if self._count == 1:
            self._first = nbytes
        # Sizes repeat from step to step: a block ends where its first one comes again.
        repeats = nbytes == self._first or self._count > 4 * self._least
        if self._count <= self._least or not repeats:
            return False
        self._count, self._first = 1, nbytes
        if self._is_young:
            self._is_young = False
            self._try_all()
            return False
        if len(self._blocks) == 1:
            return True
        self._blocks.popleft()
        return False

    def compare(self, reports: Sequence[Sequence[Measured]]) -> Optional[Outcome]:
        """What every rank has measured of each of `ways`, by rank, the same on all ranks. None: nothing was
        settled by it."""
        found: Dict[Way, int] = {}
        for index, way in enumerate(self.ways):
            known = [report[index].cost for report in reports if report[index].samples]
            if known:
                found[way] = min(known)
        if not self._is_trial:
            self._look(found.get(self.way, 0))
            return None
        if len(found) < len(self.ways):
            self._try_longer()
            return None
        self._doublings = 0
        if not self._pace.rate:
            self._pace = Pace(_rate(found[self.way]))
            self.way = Way(self._pace)
            self._try_all()
            return None
        self._costs.update(found)
        if self._is_first_turn and not self._is_clear():
            self._is_first_turn = False
            self._begin(self.ways, TURNS)
            return None
        return self._settle()

    def _is_clear(self) -> bool:
        """Whether one turn says enough of reducers and the native way."""
        native = self._costs[NATIVE]
        reducers = min(cost for way, cost in self._costs.items() if not way.is_native)
        return not 1 / CLEAR < reducers / native < CLEAR

    def _look(self, cost: int) -> None:
        """The way that was chosen goes on, or all are tried again."""
        self._left -= LOOK
        self._gone += LOOK
        # Where times just vary, trials that change nothing become rare as well.
        is_slower = cost > (1 + SLOWER) * self._reference > 0 and self._gone >= self._rest * EARLY
        if self._left <= 0 or is_slower:
            self._try_all()
        else:
            self._begin((self.way,), least=LOOK, is_trial=False)

    def _try_all(self) -> None:
        self._costs = {}
        self._widenings = 0
        self._is_first_turn = True
        if not self._pace.rate:
            # What is under way depends on it, so it comes first.
            self._begin((self.way,))
            return
        factors = {1, self._pace.factor}
        if self._may_widen:
            factors.add(self._pace.factor * WIDER)
        ways = [Way(self._pace._replace(factor=factor)) for factor in sorted(factors)]
        self._begin((*ways, NATIVE))

    def _try_longer(self) -> None:
        """Not every way could be measured: with more operations at a time, or not now."""
        self._doublings += 1
        if self._doublings <= LONGEST:
            turns = 1 if self._is_first_turn else TURNS
            self._begin(self.ways, turns, 2 * self._least)
        else:
            self._doublings = 0
            self._wait()

    def _settle(self) -> Optional[Outcome]:
        costs = self._costs
        before = self.way if self.way in costs else self.ways[0]
        tried = [way for way in costs if way.pace is not None]
        reducers = before if before in tried else tried[0]
        for way in tried:
            if costs[way] < (1 - NOISE) * costs[reducers]:
                reducers = way
        assert reducers.pace is not None
        native = costs[NATIVE]
        best = NATIVE if costs[reducers] > (1 - GAIN) * native else reducers
        self._pace = reducers.pace
        widest = max(way.pace.factor for way in tried if way.pace is not None)
        is_near = costs[reducers] < (1 + CLOSE) * native
        if (
            self._may_widen
            and reducers.pace.factor == widest
            and is_near
            and self._widenings < WIDENINGS
        ):
            # More may be better still.
            self._widenings += 1
            wider = Way(self._pace._replace(factor=widest * WIDER))
            self._begin((reducers, wider), TURNS)
            return None
        if best.pace is not None:
            # What is under way follows the rate that was reached.
            self._pace = Pace(max(best.pace.rate, _rate(costs[best])), best.pace.factor)
            costs[Way(self._pace)] = costs.pop(best)
            best = Way(self._pace)
        is_new = best.is_native != before.is_native
        self._rest = REST if is_new else min(2 * self._rest, LONGEST_REST)
        self.way = best
        self._wait()
        return Outcome(best, dict(costs), is_new)

    def _wait(self) -> None:
        """Until it is time to try all again: longer if some way was much slower."""
        self._reference = own = self._costs.get(self.way, 0)
        lost = sum(cost / own - 1 for cost in self._costs.values() if cost > own > 0)
        self._gone = 0
        rest = self._rest // SOONER if self._is_close() else self._rest
        self._left = max(rest, int(TURNS * LEAST * lost / COST))
        self._begin((self.way,), least=LOOK, is_trial=False)

    def _is_close(self) -> bool:
        """Whether it may have been chance which of reducers and the native way was the faster."""
        others = [cost for way, cost in self._costs.items() if way.is_native != self.way.is_native]
        return min(others, default=0) > 0 and min(others) < (1 + CLOSE) * self._reference

    def _begin(
        self, ways: Tuple[Way, ...], turns: int = 1, least: int = LEAST, *, is_trial: bool = True
    ) -> None:
        self.ways = ways
        self.period += 1
        self._is_trial = is_trial
        self._least = least
        self._blocks = deque(ways * turns)


def _rate(cost: int) -> int:
    return 10**12 // max(1, cost)


class Stopwatch:
    """What one rank measures: a sample is the time from a moment when nothing was under way to the next
    one, and its bytes, if all that was under way in it went one way. Thread-safe. Times are seconds of
    whatever clock."""

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
            self._samples.setdefault(self._key[1], []).append(cost)

    def measured(self, ways: Sequence[Way]) -> List[Measured]:
        """Of this period."""
        with self._lock:
            return [_summary(self._samples.get(way, ())) for way in ways]


def _summary(costs: Sequence[float]) -> Measured:
    """Whoever waits for a slow rank measures that: so not the mean."""
    if not costs:
        return Measured(0, 0)
    return Measured(max(1, int(sorted(costs)[len(costs) // 4])), len(costs))
