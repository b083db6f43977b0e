"""How far a program is, and for how long it will still run, from what it counted and when. Pure.

One of the things that a program counts measures the whole program, the governing counter: its epochs if it
says how many there are, else a bar or steps that do not start over again and again. The time of one unit is
the mean over the newer half of the units seen, so that a slow beginning counts less and less; the time
between the end of a program and its restart does not count. Within an epoch, progress is taken from the time
that has passed, once one epoch was seen whole, and before that from the steps in it.
"""

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from trainshed.core.progress.lines import (
    Count,
    Level,
    counts,
    is_aside,
    last_state,
)

_MOST_COUNTERS: Final = 32
_MOST_MARKS: Final = 128
_NEARLY: Final = 0.97
"""A counter that has come so far counts as complete when it starts over."""
_EARLY: Final = 0.35
"""If the first epoch is counted before this part of an epoch's time has passed, its line was printed when the
epoch began."""
_OUTLIER: Final = 1.5
"""Factor between two speeds from which on they count as different."""
_FEW: Final = 3
"""Number of spans from which on their mean is trusted."""
_LEAST_ERROR: Final = 0.05
"""Smallest error of an estimate, as a part of what remains."""
_FAR_ERROR: Final = 0.12
"""Error that is added at the very beginning, when little of the program was seen."""
_LEAST_SHARE: Final = 0.2
"""Part of a unit from which on the bars within it are trusted to tell how long it takes."""
_WIDTH: Final = 1.3
"""Standard deviations to either side that hold four of five cases."""


class Estimate(Struct, frozen=True):
    """How far a program is."""

    #: From 0 to 1; None = not known.
    done: float | None
    #: In words, such as "epoch 3 of 10".
    text: str
    #: Seconds that it will still run; None = too little is known.
    remaining: float | None = None
    #: Seconds by which `remaining` may be wrong, either way, in four of five cases; None = not known.
    margin: float | None = None


class _Mark(Struct, frozen=True):
    #: When the count was seen, in seconds.
    at: float
    done: float


class _Counter(Struct):
    """One thing that is counted, as it was seen to grow."""

    level: Level
    what: str
    total: float
    is_aside: bool
    #: It counts within an epoch, not over the whole program.
    is_within: bool
    began: float
    #: The moments at which its count grew, oldest first, since it last began.
    marks: list[_Mark] = field(default_factory=list[_Mark])
    #: When the count was seen last, grown or not.
    seen: float = 0.0
    #: How often it started over after it was complete.
    passes: int = 0
    #: (seconds, units) between each two successive marks from before the program's last restart.
    earlier: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    #: The program was started again since the last mark.
    is_cut: bool = False
    #: The first number that was seen is 0.
    from_zero: bool = False
    #: Lines of an epoch that say more than its number, as those at its end do.
    ends: int = 0
    #: Lines of an epoch that say its number alone, or steps within it, as those at its beginning do.
    begins: int = 0

    @property
    def done(self) -> float:
        return self.marks[-1].done if self.marks else 0.0

    @property
    def is_through(self) -> bool:
        return self.total > 0 and self.done >= self.total * _NEARLY

    def take(self, at: float, done: float) -> bool:
        """Take the count of a line; return False if it is the same as before."""
        self.seen = at
        if not self.marks:
            self.marks.append(_Mark(at, done))
            return True
        if done == self.done:
            return False
        if self.is_cut or done < self.done:
            if self.is_through and done < self.done:
                self.passes += 1
                self.earlier = []
            else:
                self.earlier = self.spans()[-_MOST_MARKS:]
            self.marks, self.is_cut = [], False
        self.marks.append(_Mark(at, done))
        if len(self.marks) > _MOST_MARKS:
            # Keep every other one of the older half.
            self.marks = self.marks[: _MOST_MARKS // 2 : 2] + self.marks[_MOST_MARKS // 2 :]
        return True

    def spans(self) -> list[tuple[float, float]]:
        """Return (seconds, units) between each two successive marks, oldest first."""
        pairs = zip(self.marks, self.marks[1:], strict=False)
        return self.earlier + [(b.at - a.at, b.done - a.done) for a, b in pairs]


class _Pace(Struct, frozen=True):
    """Seconds per unit, their standard deviation, and how many units were measured."""

    mean: float
    deviation: float
    units: float


class Tracker:
    """Takes the lines of a program in their order, and estimates its progress. `began`: when the program was
    started, in seconds of the lines' clock; `totals`: the total of each count, for lines that do not give it
    (`lines.totals_of`).

    Its memory is bounded, whatever it is given: 32 counters with 128 marks each."""

    __slots__ = ("_began", "_counters", "_totals")

    def __init__(
        self, began: float | None = None, totals: Mapping[str, float] | None = None
    ) -> None:
        self._began = began
        self._totals = dict(totals or {})
        self._counters: dict[tuple[str, float], _Counter] = {}

    def restarted(self) -> None:
        """Note that the program was started anew: the time until it has come as far again is not measured."""
        for counter in self._counters.values():
            counter.is_cut = True

    def feed(self, at: float, text: str) -> None:
        """Take a line that was printed at `at`, in seconds."""
        if line_counts := counts(last_state(text)):
            self.count(at, line_counts)

    def count(self, at: float, line_counts: tuple[Count, ...]) -> None:
        """Take what a line counts (`lines.counts`)."""
        if self._began is None:
            self._began = at
        has_steps = any(count.level is Level.STEP for count in line_counts)
        for count in line_counts:
            counter = self._counter(at, count)
            if not counter.marks and count.done == 0:
                counter.from_zero = True
            if counter.take(at, count.done) and count.level is Level.EPOCH:
                if count.has_more and not has_steps:
                    counter.ends += 1
                else:
                    counter.begins += 1

    def _counter(self, at: float, count: Count) -> _Counter:
        total = count.total or self._totals.get(count.what, 0.0)
        if count.done > total > 0 and not count.total:
            total = 0.0
        key = (count.what, total)
        counter = self._counters.get(key)
        if counter is None:
            if len(self._counters) >= _MOST_COUNTERS:
                oldest = min(self._counters, key=lambda key: self._counters[key].seen)
                del self._counters[oldest]
            counter = self._counters[key] = _Counter(
                *(count.level, count.what, total, is_aside(count), count.is_within, at)
            )
        return counter

    def estimate(self, now: float) -> Estimate | None:
        """Estimate how far the program is at `now`, which is no earlier than its last line; None if no line
        has counted anything."""
        shown = self._shown()
        if shown is None:
            return None
        governor = self._governor()
        if governor is None:
            # A share of one bar of many would be read as a share of the whole.
            return Estimate(None, _text(shown))
        if governor.level is Level.EPOCH and not self._is_smooth(governor):
            return self._by_epochs(governor, now, _text(governor))
        return _by_steps(governor, now, _text(governor), self._share(governor))

    def _share(self, outer: _Counter) -> float:
        """Return the part of its current unit that a counter has done, by the bars that began after it: each
        counts within one unit of the bar before. 0 = not known."""
        since, share, part = outer.marks[-1].at, 0.0, 1.0
        inner = [
            counter
            for counter in self._counters.values()
            if counter is not outer
            and counter.level is Level.STEP
            and counter.total > 0
            and counter.began >= outer.began
            and counter.marks
            and counter.seen >= since
            and not counter.is_aside
        ]
        for counter in sorted(inner, key=lambda counter: counter.began):
            share += part * min(counter.done / counter.total, 1.0)
            part /= counter.total
        return min(share, 1.0)

    def _shown(self) -> _Counter | None:
        """Return the counter that is shown where none governs: with a total before without, epochs before
        steps, and then the newest; one of work beside the training only if there is no other."""
        return max(
            self._counters.values(),
            key=lambda counter: (
                not counter.is_aside,
                counter.total > 0,
                counter.level,
                counter.seen,
            ),
            default=None,
        )

    def _governor(self) -> _Counter | None:
        """Return the counter that measures the whole program; None if none does."""
        known = [
            counter
            for counter in self._counters.values()
            if counter.total > 0 and not counter.is_within
        ]
        epochs = [counter for counter in known if counter.level is Level.EPOCH]
        if epochs:
            return max(epochs, key=lambda counter: counter.seen)
        if any(
            counter.level is Level.EPOCH and counter.marks for counter in self._counters.values()
        ):
            # There are epochs, but not how many of them; each epoch has bars of its own.
            known = [
                counter for counter in known if counter.total > max(e.total for e in known) * 0.999
            ]
        # What was only seen complete may have been anything.
        once = [
            counter
            for counter in known
            if not (
                counter.passes
                or counter.is_aside
                or (counter.is_through and len(counter.marks) == 1)
            )
        ]
        open_ = [counter for counter in once if not counter.is_through]
        if open_:
            return min(open_, key=lambda counter: counter.began)
        return max(once, key=lambda counter: counter.seen, default=None)

    def _is_smooth(self, counter: _Counter) -> bool:
        """Whether it counts parts of epochs as well."""
        return any(mark.done != int(mark.done) for mark in counter.marks)

    def _by_epochs(self, epochs: _Counter, now: float, text: str) -> Estimate:
        last = epochs.marks[-1]
        pace = _pace(epochs)
        is_over = self._tells_ends(epochs, pace)
        total = epochs.total + (1 if epochs.from_zero and epochs.done >= epochs.total else 0)
        over = min(last.done + is_over - (0 if epochs.from_zero else 1), total)
        inner = self._inner(last.at)
        share = inner.done / inner.total if inner else 0.0
        done = min((over + min(share, 1.0)) / total, 1.0)
        if over >= total:
            return Estimate(1.0, text, 0.0, 0.0)
        elapsed = max(now - last.at, 0.0)
        if pace is None:
            if (
                is_over
                and self._began is not None
                and last.done + (1 if epochs.from_zero else 0) == 1
            ):
                # Only one epoch was seen: it took no longer than the program so far.
                first = max(last.at - self._began, 1e-9)
                pace = _Pace(first, first / 2, 1.0)
            elif inner is None or inner.done <= 0:
                return Estimate(done, text)
            else:
                steps = _pace(inner)
                if steps is None:
                    return Estimate(done, text)
                pace = _Pace(
                    steps.mean * inner.total, steps.deviation * math.sqrt(inner.total), share
                )
        left = total - over
        if inner and inner.marks[0].at == last.at:
            # The first line of the epoch also said how many steps of it were done.
            elapsed += pace.mean * inner.marks[0].done / inner.total
        this = max(pace.mean - elapsed, 0.0)
        return _estimate(done, text, this + (left - 1) * pace.mean, left, pace)

    def _tells_ends(self, epochs: _Counter, pace: _Pace | None) -> bool:
        """Whether the line of an epoch is printed when the epoch is over, not when it begins."""
        if epochs.ends <= epochs.begins:
            return False
        first = epochs.marks[0]
        units = first.done + (1 if epochs.from_zero else 0)
        if pace is None or self._began is None or epochs.earlier or units != 1:
            return True
        return first.at - self._began >= pace.mean * _EARLY

    def _inner(self, since: float) -> _Counter | None:
        """Return the largest counter of steps within the epoch that began at `since`."""
        steps = [
            counter
            for counter in self._counters.values()
            if counter.level is Level.STEP
            and counter.total > 0
            and counter.marks
            and counter.seen >= since
            and counter.marks[-1].at >= since
            and not counter.is_aside
        ]
        return max(steps, key=lambda counter: (counter.total, counter.seen), default=None)


def _text(counter: _Counter) -> str:
    return Count(counter.level, counter.what, counter.done, counter.total).text


def _by_steps(counter: _Counter, now: float, text: str, share: float) -> Estimate:
    """Estimate by a counter of steps. `share`: the part of the unit under way that is done, by what is
    counted within it; 0 = not known."""
    total, last = counter.total, counter.marks[-1]
    done = min(counter.done / total, 1.0)
    if counter.done >= total:
        return Estimate(1.0, text, 0.0, 0.0)
    pace = _pace(counter)
    left = total - counter.done
    if pace is None:
        if share < _LEAST_SHARE or now <= last.at:
            return Estimate(done, text)
        # The first unit, by what is counted within it.
        unit = (now - last.at) / share
        pace = _Pace(unit, unit / 2, share)
        done = min((counter.done + share) / total, 1.0)
    # What was presumably done since its last line.
    since = min(max(now - last.at, 0.0), left * pace.mean)
    return _estimate(done, text, left * pace.mean - since, left, pace)


def _pace(counter: _Counter) -> _Pace | None:
    """Return how long a unit takes, by the newer half of the spans; None if there are none."""
    spans = [span for span in counter.spans() if span[1] > 0 and span[0] >= 0]
    if not spans:
        return None
    units = sum(span[1] for span in spans)
    newest = _newest(spans)
    if (
        len(newest) >= _FEW
        and not 1 / _OUTLIER < _mean(spans[: -len(newest)]) / _mean(newest) < _OUTLIER
    ):
        # Its speed has changed.
        spans = newest
    elif len(spans) > _FEW:
        half, kept = 0.0, 0
        while kept < _FEW or half < units / 2:
            kept += 1
            half += spans[-kept][1]
        # Enough spans to hold what comes only now and then, such as a validation.
        spans = spans[-max(kept, min(len(spans) - 1, 8)) :]
    elif len(spans) > 1 and spans[0][0] / spans[0][1] > _OUTLIER * _mean(spans[1:]):
        spans = spans[1:]
    mean = _mean(spans)
    if mean <= 0:
        return None
    units = sum(span[1] for span in spans)
    spread = sum(span[1] * (span[0] / span[1] - mean) ** 2 for span in spans) / units
    # A span of many units is their mean: the deviation of one unit is larger.
    many = units / len(spans)
    return _Pace(mean, math.sqrt(spread * many), units)


def _newest(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the spans of the newest third of the time, but never all of them."""
    left, kept = sum(span[0] for span in spans) / 3, 0
    while kept < len(spans) - 1 and left > 0:
        kept += 1
        left -= spans[-kept][0]
    return spans[len(spans) - kept :]


def _mean(spans: list[tuple[float, float]]) -> float:
    return sum(span[0] for span in spans) / sum(span[1] for span in spans)


def _estimate(done: float, text: str, remaining: float, left: float, pace: _Pace) -> Estimate:
    chance = pace.deviation * math.sqrt(left + left * left / max(pace.units, 1e-9))
    known = remaining * (_LEAST_ERROR + _FAR_ERROR * (1 - done))
    return Estimate(done, text, remaining, _WIDTH * max(chance, known))
