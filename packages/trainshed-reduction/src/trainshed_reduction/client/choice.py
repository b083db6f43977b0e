"""Chooses the way of a group's sums by what its ranks have measured: to the reducers, and with how much under
way, or natively. Pure.

All ranks ask before every operation that reducers could do, in the same order. When they have to compare,
they exchange what each has measured since the last time; from the same numbers all choose the same way, even
if one is slow or has lost a reducer. Ways are tried in turns, a few operations each, so that drift affects
all alike: when the group is young, when its sums become slower, and now and then. Reducers are chosen only
where they are faster by more than noise: to add them to a job must never cost time.
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
WIDER = 4
WIDENINGS = 3
NOISE = 0.03
"""How much better, as a part of its time, another credit must be to be taken."""
GAIN = 0.05
"""How much better than the native way, as a part of its time, reducers must be to be taken."""
CLEAR = 2.0
"""How many times as fast as the other one reducers or the native way must be to be chosen after one turn."""
SLOWER = 0.25
"""How much slower than before, as a part of its time, the way must be for all to be tried again early."""
LOOK = 100
"""Operations between two checks of that."""
REST = 500
LONGEST_REST = 16_000
"""Operations until all ways are tried again: REST at first, doubled each time that nothing has changed, up to
LONGEST_REST."""
CLOSE = 0.2
"""How near to each other, as a part of their time, reducers and the native way are tried again sooner."""
SOONER = 10
"""What the number of operations until then is divided by."""
EARLY = 0.2
"""Part of that number that has to be over before slower sums cause another trial."""
COST = 0.005
"""Part of all time that trials may take, by what is known of the ways."""


class Pace(NamedTuple):
    """How much reducers have under way.

    `rate`: measured bytes per second of a worker's sums; 0: only the settings' bandwidth is known. `factor`:
    multiplies the credit for that rate."""

    rate: int = 0
    factor: int = 1


class Way(NamedTuple):
    """How an operation is summed. `pace`: the reducers'; None: natively."""

    pace: Optional[Pace]

    @property
    def is_native(self) -> bool:
        return self.pace is None


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

    def __init__(self, *, may_widen: bool = True) -> None:
        self._may_widen = may_widen
        #: The way of operations outside trials.
        self.way = Way(Pace())
        #: The ways that are measured until the ranks compare next.
        self.ways: Tuple[Way, ...] = (self.way,)
        #: The number of the period of measuring: what was measured in earlier ones does not count.
        self.period = 0
        #: The blocks of operations that are left of this period, by way; the current one first.
        self._blocks: Deque[Way] = deque(self.ways)
        self._least = UNMEASURED
        self._count = 0
        self._first = 0
        self._is_young = True
        self._is_trial = True
        self._is_first_turn = True
        self._doublings = 0
        self._widenings = 0
        #: The pace at which reducers were the fastest.
        self._pace = Pace()
        #: The costs of ways in this trial so far.
        self._costs: Dict[Way, int] = {}
        self._reference = 0
        self._rest = REST
        self._left = 0
        self._gone = 0

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
        if self._is_young:
            self._is_young = False
            self._try_all()
            return False
        if len(self._blocks) == 1:
            return True
        self._blocks.popleft()
        return False

    def compare(self, reports: Sequence[Sequence[Measured]]) -> Optional[Outcome]:
        """Take what every rank has measured of each of `ways`, by rank, the same on all ranks. Returns the
        outcome if that ends a trial, else None."""
        counts: Dict[Way, int] = {}
        for index, way in enumerate(self.ways):
            known = [report[index].cost for report in reports if report[index].samples]
            if known:
                counts[way] = min(known)
        if not self._is_trial:
            self._look(counts.get(self.way, 0))
            return None
        if len(counts) < len(self.ways):
            self._try_longer()
            return None
        self._doublings = 0
        if not self._pace.rate:
            self._pace = Pace(_rate(counts[self.way]))
            self.way = Way(self._pace)
            self._try_all()
            return None
        self._costs.update(counts)
        if self._is_first_turn and not self._is_clear():
            self._is_first_turn = False
            self._begin(self.ways, TURNS)
            return None
        return self._settle()

    def _is_clear(self) -> bool:
        """Whether one turn is enough to choose between reducers and the native way."""
        native = self._costs[NATIVE]
        reducers = min(cost for way, cost in self._costs.items() if not way.is_native)
        return not 1 / CLEAR < reducers / native < CLEAR

    def _look(self, cost: int) -> None:
        """Go on with the chosen way, or try all again."""
        self._left -= LOOK
        self._gone += LOOK
        # Where times only vary, trials that change nothing become rare as well.
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
            # How much is under way depends on the rate, so the rate is measured first.
            self._begin((self.way,))
            return
        factors = {1, self._pace.factor}
        if self._may_widen:
            factors.add(self._pace.factor * WIDER)
        ways = [Way(self._pace._replace(factor=factor)) for factor in sorted(factors)]
        self._begin((*ways, NATIVE))

    def _try_longer(self) -> None:
        """Try with more operations at a time, since not every way could be measured; or give up for now."""
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
            # More under way may be better still.
            self._widenings += 1
            wider = Way(self._pace._replace(factor=widest * WIDER))
            self._begin((reducers, wider), TURNS)
            return None
        if best.pace is not None:
            # How much is under way follows the rate that was reached.
            self._pace = Pace(max(best.pace.rate, _rate(costs[best])), best.pace.factor)
            costs[Way(self._pace)] = costs.pop(best)
            best = Way(self._pace)
        is_new = best.is_native != before.is_native
        self._rest = REST if is_new else min(2 * self._rest, LONGEST_REST)
        self.way = best
        self._wait()
        return Outcome(best, dict(costs), is_new)

    def _wait(self) -> None:
        """Go on until it is time to try all again, which is later if some way was much slower."""
        self._reference = own = self._costs.get(self.way, 0)
        lost = sum(cost / own - 1 for cost in self._costs.values() if cost > own > 0)
        self._gone = 0
        rest = self._rest // SOONER if self._is_close() else self._rest
        self._left = max(rest, int(TURNS * LEAST * lost / COST))
        self._begin((self.way,), least=LOOK, is_trial=False)

    def _is_close(self) -> bool:
        """Whether chance may have decided which of reducers and the native way was faster."""
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
            self._samples.setdefault(self._key[1], []).append(cost)

    def measured(self, ways: Sequence[Way]) -> List[Measured]:
        """Return what was measured of each way in the current period."""
        with self._lock:
            return [_summary(self._samples.get(way, ())) for way in ways]


def _summary(costs: Sequence[float]) -> Measured:
    """Take the lower quartile, not the mean: a rank that waits for a slow one measures that one's delay."""
    if not costs:
        return Measured(0, 0)
    return Measured(max(1, int(sorted(costs)[len(costs) // 4])), len(costs))
