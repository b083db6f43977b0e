"""How far a program is, and for how long it will still run, from the lines that it prints. Pure.

A line counts only if it tells how much is done, and either how much there is or what is counted: bars of
tqdm, Keras, Lightning and Hugging Face, and lines that count epochs or steps. One of the things that a
program counts measures the whole program: its epochs if it says how many there are, else a bar or steps that
do not start over again and again. The time of one unit is the mean over the newer half of the units seen; the
time between the end of a program and its restart does not count.
"""

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace


class Level(enum.IntEnum):
    """The size of the unit that is counted: an epoch holds many steps."""

    STEP = 0
    EPOCH = 1


class Count(Struct, frozen=True):
    """A count in a line: how much is done of how much."""

    level: Level
    #: What is counted, such as "epoch"; for a bar the text before it, without its numbers; "" = not said.
    what: str
    done: float
    #: 0 = not said.
    total: float
    #: The rest of the line has numbers as well, as lines at the end of an epoch do.
    has_more: bool = False
    #: The line says which epoch it belongs to: it counts within that epoch, not over the whole program.
    is_within: bool = False

    @property
    def text(self) -> str:
        """The count in words, such as "epoch 3 of 10"."""
        done, total = (f"{n:,.0f}" if n >= 10_000 else f"{n:g}" for n in (self.done, self.total))
        counted = f"{done} of {total}" if self.total else done
        return f"{self.what} {counted}" if self.what in LEVELS else counted


LEVELS: Final = {
    **dict.fromkeys(("epoch", "round", "generation", "episode"), Level.EPOCH),
    **dict.fromkeys(("step", "iteration", "iter", "batch", "update", "timestep"), Level.STEP),
}
"""The level of what is counted, by the word for one unit of it."""

_ASIDE: Final = re.compile(
    r"\b(?:map|filter|loading|downloading|tokeni[sz]ing|generating|casting|extracting|resolving|fetching"
    r"|creating|sanity checking|preparing|preprocessing|uploading|saving|scanning|compiling|building"
    r"|installing|validation|validating|valid|val|evaluation|evaluating|eval|testing|test|predicting)\b",
    re.IGNORECASE,
)
"""Names of work that is done before the training, or beside it."""

_NAME: Final = r"(epoch|step|iteration|iter|batch|round|generation|episode|update|timestep)s?"
_WORD: Final = rf"\b(?:global_|train_|training_|current_|total_(?=times))?{_NAME}\b"
_NUMBER: Final = r"(\d{1,12})"
_COUNTED: Final = re.compile(
    rf"{_WORD}[\s:=#\[]{{0,16}}{_NUMBER}\s{{0,3}}(?:/|of)\s{{0,12}}{_NUMBER}", re.IGNORECASE
)
_WITHOUT_TOTAL: Final = re.compile(
    rf"{_WORD}(?:\(train(?:ing)?\))?['\"]?(?:\s{{0,3}}[:=#]?|\s{{0,24}}\|)\s{{0,3}}['\"\[]?"
    r"(\d{1,12}(?:\.\d{1,12})?)(?![\d.]*[/\d%])",
    re.IGNORECASE,
)
_AMOUNT: Final = r"(\d{1,12}(?:\.\d{1,6})?)([kMG]?)"
_BAR: Final = re.compile(rf"(\d{{1,3}})%\|[^|]{{0,300}}\|\s{{0,3}}{_AMOUNT}/{_AMOUNT}")
_STEPS: Final = (
    # `12/50 ━━━` and `12/50 - 4s`, of Keras.
    re.compile(rf"^\s{{0,12}}{_NUMBER}/{_NUMBER} (?:[━╸╺\[]|- \d)"),
    # `[6400/60000 (11%)]`, of PyTorch's examples.
    re.compile(rf"\[{_NUMBER}/{_NUMBER} \(\s{{0,3}}\d{{1,3}}(?:\.\d{{1,3}})?%\)\]"),
)
_ROUND: Final = re.compile(r"^\[(\d{1,9})\]\s{1,4}[\w' @]{1,60}[-:]")
"""`[12]\ttrain-rmse:0.4`, as XGBoost and LightGBM print their rounds."""
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]{0,12}[A-Za-z]")
_DIGITS: Final = re.compile(r"\d{1,12}")
_MULTIPLES: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_LONGEST: Final = 2000
_LONGEST_NAME: Final = 60


def counts(text: str) -> tuple[Count, ...]:
    """Return all that a line (`last_state`) counts: epochs before steps, and of either the last one first."""
    words, bars = _words(text), _bars(text)
    if bars:
        # The numbers behind the epoch are the bar's: they do not say that the epoch is over.
        words = [replace(count, has_more=False) for count in words if count.level]
        bars = [replace(bar, is_within=bool(words)) for bar in bars]
    return tuple(sorted(words + bars, key=lambda count: -count.level))


def last_state(text: str) -> str:
    """Return what is left to see of a line that was overwritten, without colours; of a long line, its end."""
    text = text[-_LONGEST:].rstrip("\r\x08").rpartition("\r")[2]
    return _COLOURS.sub("", text).rpartition("\x08")[2]


def _words(text: str) -> list[Count]:
    by_word: dict[str, Count] = {}
    for match in reversed(list(_COUNTED.finditer(text))):
        word, done, total = match[1].lower(), int(match[2]), int(match[3])
        if 0 < total >= done and word not in by_word:
            has_more = _DIGITS.search(text, match.end()) is not None
            by_word[word] = Count(LEVELS[word], word, done, total, has_more)
    for match in reversed(list(_WITHOUT_TOTAL.finditer(text))):
        word = match[1].lower()
        if word not in by_word:
            has_more = _DIGITS.search(text[: match.start()] + text[match.end() :]) is not None
            by_word[word] = Count(LEVELS[word], word, float(match[2]), 0, has_more)
    if not by_word and (match := _ROUND.match(text)):
        return [Count(Level.EPOCH, "round", float(match[1]), 0, True)]
    words = list(by_word.values())
    if any(count.level is Level.STEP and count.total for count in words):
        # The line is about a step: its further numbers do not say that the epoch is over.
        return [replace(count, has_more=False) for count in words]
    return words


def _bars(text: str) -> list[Count]:
    if bar := _BAR.search(text):
        done, total = float(bar[2]) * _MULTIPLES[bar[3]], float(bar[4]) * _MULTIPLES[bar[5]]
        if total >= max(done, 1):
            name = _DIGITS.sub("#", text[: bar.start()].strip(" :"))[-_LONGEST_NAME:]
            return [Count(Level.STEP, name, done, total)]
    for pattern in _STEPS:
        if match := pattern.search(text):
            done, total = int(match[1]), int(match[2])
            if total >= max(done, 1):
                is_aside = _ASIDE.search(text, 0, match.start()) is not None
                return [Count(Level.STEP, "validation" if is_aside else "", done, total)]
    return []


_ARGUMENT: Final = re.compile(
    r"(?:--?)?(?:[\w-]{1,40}\.){0,4}(?:num[_-]|n[_-]|max[_-]|total[_-])?(?:train[_-]|boost[_-])?"
    r"(epoch|round|generation|episode|step|iter|iteration|estimator|update|timestep)s?(?:=(.{1,12}))?",
    re.IGNORECASE,
)


def totals_of(arguments: Sequence[str]) -> Mapping[str, float]:
    """Return the totals on a program's command line (`--epochs 10`, `--max_steps=500`,
    `trainer.max_epochs=10`), by what is counted. They are for lines that count without a total."""
    by_word: dict[str, float] = {}
    for place, argument in enumerate(arguments):
        match = _ARGUMENT.fullmatch(argument)
        if match is None or not (argument.startswith("-") or "." in argument or match[2]):
            continue
        value = match[2] or (arguments[place + 1] if place + 1 < len(arguments) else "")
        if re.fullmatch(r"\d{1,9}(?:\.0)?", value) and float(value):
            word = match[1].lower()
            by_word["round" if word == "estimator" else word] = float(value)
    return by_word


_MOST_COUNTERS: Final = 32
_MOST_MARKS: Final = 128
_NEARLY: Final = 0.97
"""A counter that has come so far counts as complete when it starts over."""
_EARLY: Final = 0.35
"""If the first epoch is counted before this part of an epoch's time has passed, its line was printed when the
epoch began."""
_LEAST_SPANS: Final = 8
"""Spans that a pace is measured over, to hold what comes only now and then, such as a validation."""


class Estimate(Struct, frozen=True):
    """How far a program is."""

    #: From 0 to 1; None = not known.
    done: float | None
    #: In words, such as "epoch 3 of 10".
    text: str
    #: Seconds that it will still run; None = too little is known.
    remaining: float | None = None


class _Counter(Struct):
    """One thing that is counted, as it was seen to grow."""

    level: Level
    what: str
    total: float
    #: It counts within an epoch, not over the whole program.
    is_within: bool
    began: float
    #: (seconds, count) at each moment at which its count grew, oldest first, since it last began.
    marks: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    #: When the count was seen last, grown or not.
    seen: float = 0.0
    #: It started over after it was complete.
    is_repeated: bool = False
    #: (seconds, units) between each two successive marks from before the program's last restart.
    earlier: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    #: The program was started again since the last mark.
    is_cut: bool = False
    #: Lines of an epoch that say more than its number, as those at its end do, less those that do not.
    ends: int = 0

    @property
    def done(self) -> float:
        return self.marks[-1][1]

    @property
    def is_aside(self) -> bool:
        return _ASIDE.match(self.what) is not None

    @property
    def is_through(self) -> bool:
        return self.total > 0 and self.done >= self.total * _NEARLY

    def take(self, at: float, done: float) -> bool:
        """Take the count of a line; return False if it is the same as before."""
        self.seen = at
        if self.marks and done == self.done:
            return False
        if self.marks and (self.is_cut or done < self.done):
            self.is_repeated |= self.is_through and done < self.done
            self.earlier = [] if self.is_repeated else self.spans()[-_MOST_MARKS:]
            self.marks, self.is_cut = [], False
        self.marks.append((at, done))
        if len(self.marks) > _MOST_MARKS:
            # Keep every other one of the older half.
            self.marks = self.marks[: _MOST_MARKS // 2 : 2] + self.marks[_MOST_MARKS // 2 :]
        return True

    def spans(self) -> list[tuple[float, float]]:
        """Return (seconds, units) between each two successive marks, oldest first."""
        pairs = zip(self.marks, self.marks[1:], strict=False)
        return self.earlier + [(b[0] - a[0], b[1] - a[1]) for a, b in pairs]

    def pace(self) -> float | None:
        """Return the seconds that a unit takes, by the newer half of the spans; None if there are none."""
        spans = [span for span in self.spans() if span[1] > 0]
        spans = spans[-max(len(spans) // 2, min(len(spans) - 1, _LEAST_SPANS), 1) :]
        units = sum(span[1] for span in spans)
        return sum(span[0] for span in spans) / units if units else None


class Tracker:
    """Takes the lines of a program in their order, and estimates its progress. `began`: when the program was
    started, in seconds of the lines' clock; `totals`: the total of each count, for lines that do not give it
    (`totals_of`).

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
        if self._began is None:
            self._began = at
        line_counts = counts(last_state(text))
        has_steps = any(count.level is Level.STEP for count in line_counts)
        for count in line_counts:
            counter = self._counter(at, count)
            if counter.take(at, count.done):
                counter.ends += 1 if count.has_more and not has_steps else -1

    def _counter(self, at: float, count: Count) -> _Counter:
        total = count.total or self._totals.get(count.what, 0.0)
        if count.done > total:
            total = 0.0
        key = (count.what, total)
        counter = self._counters.get(key)
        if counter is None:
            if len(self._counters) >= _MOST_COUNTERS:
                del self._counters[min(self._counters, key=lambda key: self._counters[key].seen)]
            counter = _Counter(count.level, count.what, total, count.is_within, at)
            self._counters[key] = counter
        return counter

    def estimate(self, now: float) -> Estimate | None:
        """Estimate how far the program is at `now`, which is no earlier than its last line; None if no line
        has counted anything."""
        if not self._counters:
            return None
        governor = self._governor()
        if governor is None:
            # A share of one bar of many would be read as a share of the whole.
            return Estimate(None, _text(self._shown()))
        if governor.level is Level.EPOCH and governor.done == int(governor.done):
            return self._by_epochs(governor, now)
        return _by_steps(governor, now)

    def _shown(self) -> _Counter:
        """Return the counter that is shown where none governs."""
        return max(
            self._counters.values(),
            key=lambda counter: (
                not counter.is_aside,
                counter.total > 0,
                counter.level,
                counter.seen,
            ),
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
        # What was only seen complete may have been anything.
        once = [
            counter
            for counter in known
            if not (
                counter.is_repeated
                or counter.is_aside
                or (counter.is_through and len(counter.marks) == 1)
            )
        ]
        if any(counter.level is Level.EPOCH for counter in self._counters.values()):
            # There are epochs, but not how many of them; each epoch has bars of its own.
            most = max((counter.total for counter in known), default=0.0)
            once = [counter for counter in once if counter.total == most]
        ahead = [counter for counter in once if not counter.is_through]
        if ahead:
            return min(ahead, key=lambda counter: counter.began)
        return max(once, key=lambda counter: counter.seen, default=None)

    def _by_epochs(self, epochs: _Counter, now: float) -> Estimate:
        last, first = epochs.marks[-1][0], epochs.marks[0]
        text, pace, from_zero = _text(epochs), epochs.pace(), first[1] == 0
        is_over = epochs.ends > 0 and not (
            pace and self._began is not None and first[0] - self._began < pace * _EARLY
        )
        over = min(epochs.done + is_over + from_zero - 1, epochs.total)
        if over >= epochs.total:
            return Estimate(1.0, text, 0.0)
        inner = self._inner(last)
        share = min(inner.done / inner.total, 1.0) if inner else 0.0
        done = (over + share) / epochs.total
        if pace is None:
            if is_over and over == 1 and self._began is not None:
                # It took no longer than the program so far.
                pace = last - self._began
            else:
                step = inner.pace() if inner else None
                if inner is None or step is None:
                    return Estimate(done, text)
                pace = step * inner.total
        this = max(pace - max(now - last, 0.0), 0.0)
        return Estimate(done, text, this + (epochs.total - over - 1) * pace)

    def _inner(self, since: float) -> _Counter | None:
        """Return the largest counter of steps within the epoch that began at `since`."""
        steps = [
            counter
            for counter in self._counters.values()
            if counter.level is Level.STEP
            and counter.total > 0
            and counter.marks[-1][0] >= since
            and not counter.is_aside
        ]
        return max(steps, key=lambda counter: (counter.total, counter.seen), default=None)


def _text(counter: _Counter) -> str:
    return Count(counter.level, counter.what, counter.done, counter.total).text


def _by_steps(counter: _Counter, now: float) -> Estimate:
    text, done = _text(counter), min(counter.done / counter.total, 1.0)
    if done >= 1:
        return Estimate(1.0, text, 0.0)
    pace = counter.pace()
    if pace is None:
        return Estimate(done, text)
    rest = (counter.total - counter.done) * pace
    # Less what was presumably done since its last line.
    return Estimate(done, text, max(rest - max(now - counter.marks[-1][0], 0.0), 0.0))


_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def remaining_text(remaining: float | None) -> str:
    """Return a time in seconds as text, such as `about 12 min left`; "" = not known."""
    if remaining is None:
        return ""
    if remaining < 1:
        return "nearly done"
    size, unit = next((unit for unit in _UNITS if remaining >= 2 * unit[0]), _UNITS[-1])
    count = remaining / size
    if count >= 100:
        return f"about {round(count, -1):.0f} {unit} left"
    decimals = 0 if count >= 10 or unit in ("s", "min") else 1
    return f"about {count:.{decimals}f} {unit} left"
