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
from msgspec.structs import replace

from trainshed.core.progress.guessed import column, guesses, row
from trainshed.core.progress.lines import (
    Count,
    Level,
    counts,
    is_aside,
    last_state,
    rest,
    total_of,
)
from trainshed.core.progress.records import Estimate

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
_TOLD_ERROR: Final = 0.15
"""Error of the remaining time that a program itself prints, as a part of it."""
_SURE: Final = 3
"""Number of counts, each larger than the one before, after which a guess is believed."""
_WIDTH: Final = 1.3
"""Standard deviations to either side that hold four of five cases."""


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
    #: It was found in no known form, and is believed only once it has grown.
    is_guess: bool = False
    #: It has fallen before it was complete: such a guess is not believed.
    has_fallen: bool = False
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

    @property
    def is_sure(self) -> bool:
        """Whether it may be believed: a guess must have grown, and from at most half of its total."""
        if not self.is_guess:
            return True
        return (
            not self.has_fallen
            and len(self.marks) >= _SURE
            and self.marks[0].done <= self.total / 2
            and self.marks[-1].at > self.marks[0].at
        )

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
                self.has_fallen = self.has_fallen or not self.is_cut
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

    __slots__ = ("_began", "_counters", "_table", "_told", "_totals")

    def __init__(
        self, began: float | None = None, totals: Mapping[str, float] | None = None
    ) -> None:
        self._began = began
        self._totals = dict(totals or {})
        self._counters: dict[tuple[str, float, bool], _Counter] = {}
        #: The column of the table that is being printed, and what it counts.
        self._table: tuple[int, str] | None = None
        #: (when, seconds left) as the program itself printed it, oldest first, since its start.
        self._told: list[tuple[float, float]] = []

    def restarted(self) -> None:
        """Note that the program was started anew: the time until it has come as far again is not measured."""
        self._told = []
        for counter in self._counters.values():
            counter.is_cut = True

    def feed(self, at: float, text: str) -> None:
        """Take a line that was printed at `at`, in seconds."""
        text = last_state(text)
        if found := self._found(text):
            self.count(at, found)
        if (told := rest(text)) is not None:
            if len(self._told) >= _MOST_MARKS:
                del self._told[: _MOST_MARKS // 2 : 2]
            self._told.append((at, told))

    def _found(self, text: str) -> tuple[Count, ...]:
        """Return what a line counts: in a table's column, in known forms, or else as a guess."""
        found = counts(text)
        if self._table is not None and (told := row(text, self._table)) is not None:
            steps = tuple(
                replace(each, is_within=True) for each in found if each.level is Level.STEP
            )
            return (replace(told, has_more=not steps), *steps)
        self._table = column(text) or self._table
        if any(each.total and (each.level is Level.STEP) for each in found):
            return found
        is_within = any(each.level is Level.EPOCH for each in found)
        # The pair of `epoch 4/8` is known: it is no step within that epoch.
        known = {(each.done, each.total) for each in found}
        guessed = [each for each in guesses(text) if (each.done, each.total) not in known]
        return (*found, *(replace(each, is_within=is_within) for each in guessed))

    def count(self, at: float, found: tuple[Count, ...]) -> None:
        """Take what a line counts (`lines.counts`)."""
        if self._began is None:
            self._began = at
        has_steps = any(
            each.level is Level.STEP and not (each.is_guess and each.done >= each.total)
            for each in found
        )
        for each in found:
            counter = self._counter(at, each)
            if counter is None:
                continue
            if not counter.marks and each.done == 0:
                counter.from_zero = True
            if counter.take(at, each.done) and each.level is Level.EPOCH:
                if each.has_more and not has_steps:
                    counter.ends += 1
                else:
                    counter.begins += 1

    def _counter(self, at: float, count: Count) -> _Counter | None:
        total = count.total or total_of(self._totals, count.what)
        if count.done > total > 0 and not count.total:
            total = 0.0
        key = (count.what, total, count.is_guess)
        found = self._counters.get(key)
        if found is None:
            if len(self._counters) >= _MOST_COUNTERS:
                oldest = min(self._counters, key=lambda each: self._counters[each].seen)
                del self._counters[oldest]
            found = _Counter(
                *(count.level, count.what, total, is_aside(count), count.is_within, at),
                is_guess=count.is_guess,
            )
            self._counters[key] = found
        return found

    def estimate(self, now: float) -> Estimate | None:
        """Estimate how far the program is at `now`, which is no earlier than its last line; None if no line
        has told anything."""
        found = self._counted(now)
        if not self._told or (found is not None and found.remaining is not None):
            return found
        left = _told_rest(self._told, now)
        if left is None:
            return found
        done, text = (found.done, found.text) if found else (None, "")
        return Estimate(done, text, left, left * _TOLD_ERROR)

    def _counted(self, now: float) -> Estimate | None:
        """Return the estimate by what lines count; None if no line has counted anything."""
        shown = self._shown()
        if shown is None:
            return None
        text = _text(shown)
        governor = self._governor()
        if governor is None:
            # A share of one bar of many would be read as a share of the whole.
            return Estimate(None, text)
        if governor.level is Level.EPOCH and not self._is_smooth(governor):
            return self._by_epochs(governor, now, _text(governor))
        return _by_steps(governor, now, _text(governor), self._share(governor))

    def _share(self, outer: _Counter) -> float:
        """Return the part of its current unit that a counter has done, by the bars that began after it: each
        counts within one unit of the bar before. 0 = not known."""
        since, share, part = outer.marks[-1].at, 0.0, 1.0
        inner = [
            each
            for each in self._counters.values()
            if each is not outer
            and each.level is Level.STEP
            and each.total > 0
            and each.began >= outer.began
            and each.marks
            and each.seen >= since
            and not each.is_aside
            and each.is_sure
        ]
        for each in sorted(inner, key=lambda each: each.began):
            share += part * min(each.done / each.total, 1.0)
            part /= each.total
        return min(share, 1.0)

    def _shown(self) -> _Counter | None:
        """Return the counter that is shown where none governs: with a total before without, epochs before
        steps, and then the newest; one of work beside the training only if there is no other."""
        return max(
            (each for each in self._counters.values() if each.is_sure),
            key=lambda each: (not each.is_aside, each.total > 0, each.level, each.seen),
            default=None,
        )

    def _governor(self) -> _Counter | None:
        """Return the counter that measures the whole program; None if none does."""
        known = [
            each
            for each in self._counters.values()
            if each.total > 0 and not each.is_within and not each.is_guess
        ]
        epochs = [each for each in known if each.level is Level.EPOCH]
        if epochs:
            return max(epochs, key=lambda each: each.seen)
        if any(each.level is Level.EPOCH and each.marks for each in self._counters.values()):
            # There are epochs, but not how many of them; each epoch has bars of its own.
            known = [each for each in known if each.total > max(e.total for e in known) * 0.999]
        # What was only seen complete may have been anything.
        once = [
            each
            for each in known
            if not (each.passes or each.is_aside or (each.is_through and len(each.marks) == 1))
        ]
        open_ = [each for each in once if not each.is_through]
        if open_:
            return min(open_, key=lambda each: each.began)
        return self._guessed() or max(once, key=lambda each: each.seen, default=None)

    def _guessed(self) -> _Counter | None:
        """Return the guessed counter that measures the whole program; None if there is none, or it is not
        clear which."""
        epochs = [each for each in self._counters.values() if each.level is Level.EPOCH]
        found = [
            each
            for each in self._counters.values()
            if each.is_guess
            and not (each.is_within or each.passes or each.has_fallen or each.is_through)
            # What goes on over the end of an epoch is no part of one.
            and all(len(e.marks) > 1 and each.marks[0].at < e.marks[-1].at for e in epochs)
        ]
        if not found or not all(each.is_sure for each in found):
            # What has not grown yet may be what holds the others.
            return None
        return min(found, key=lambda each: each.began)

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
        found = [
            each
            for each in self._counters.values()
            if each.level is Level.STEP
            and each.total > 0
            and each.marks
            and each.seen >= since
            and each.marks[-1].at >= since
            and not each.is_aside
            and (each.is_sure or each.passes > 0)
        ]
        return max(found, key=lambda each: (each.total, each.seen), default=None)


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


def _told_rest(told: list[tuple[float, float]], now: float) -> float | None:
    """Return the seconds that remain by what a program itself printed. If its latest numbers did not fall as
    fast as time went by, they are corrected by the speed at which they fell. None if they do not fall."""
    at, left = told[-1]
    began = next(each for each in told if each[0] >= (told[0][0] + at) / 2)
    speed = (began[1] - left) / (at - began[0]) if at > began[0] else 1.0
    if speed <= 0:
        return None
    if not 1 / _OUTLIER < speed < _OUTLIER:
        left /= speed
    return max(left - max(now - at, 0.0), 0.0)


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
