"""How far a program is, and for how long it will still run, from the lines that it prints. Pure.

A line counts only if it tells how much is done, and either how much there is or what is counted: bars of
tqdm, Keras, Lightning and Hugging Face, and lines that count epochs or steps. One of the things that a
program counts measures the whole program: its epochs if it says how many there are, else a bar or steps that
do not start over again and again. The time of one unit is the mean over those seen since the program, or the
count, last began.
"""

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
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
    #: The line says which epoch it belongs to: it counts within that epoch, not over the whole program.
    is_within: bool = False

    @property
    def text(self) -> str:
        """The count in words, such as "epoch 3 of 10"."""
        done, total = (_figure(count) for count in (self.done, self.total))
        counted = f"{done} of {total}" if self.total else done
        return f"{self.what} {counted}" if self.what in LEVELS else counted


def _figure(count: float) -> str:
    return f"{count:,.0f}" if count >= 10_000 else f"{count:g}"


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
        words = [count for count in words if count.level]
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
            by_word[word] = Count(LEVELS[word], word, done, total)
    for match in reversed(list(_WITHOUT_TOTAL.finditer(text))):
        word = match[1].lower()
        if word not in by_word:
            by_word[word] = Count(LEVELS[word], word, float(match[2]), 0)
    if not by_word and (match := _ROUND.match(text)):
        return [Count(Level.EPOCH, "round", float(match[1]), 0)]
    return list(by_word.values())


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
_NEARLY: Final = 0.97
"""A counter that has come so far counts as complete when it starts over."""


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
    #: (seconds, count) when it last began, and when its count grew last.
    first: tuple[float, float]
    last: tuple[float, float]
    #: When the count was seen last, grown or not.
    seen: float
    #: It started over after it was complete.
    is_repeated: bool = False

    @property
    def done(self) -> float:
        return self.last[1]

    @property
    def is_aside(self) -> bool:
        return _ASIDE.match(self.what) is not None

    @property
    def is_through(self) -> bool:
        return self.total > 0 and self.done >= self.total * _NEARLY

    @property
    def pace(self) -> float | None:
        """The seconds that a unit takes; None if the count has not grown."""
        units = self.done - self.first[1]
        return (self.last[0] - self.first[0]) / units if units else None

    def take(self, at: float, done: float) -> None:
        """Take the count of a line."""
        self.seen = at
        if done < self.done:
            self.is_repeated |= self.is_through
            self.first = (at, done)
        if done != self.done:
            self.last = (at, done)


class Tracker:
    """Takes the lines of a program in their order, and estimates its progress, in bounded memory. `totals`:
    the total of each count, for lines that do not give it (`totals_of`)."""

    __slots__ = ("_counters", "_totals")

    def __init__(self, totals: Mapping[str, float] | None = None) -> None:
        self._totals = dict(totals or {})
        self._counters: dict[tuple[str, float], _Counter] = {}

    def restarted(self) -> None:
        """Note that the program was started anew: what it counts is measured anew."""
        self._counters.clear()

    def feed(self, at: float, text: str) -> None:
        """Take a line that was printed at `at`, in seconds."""
        for count in counts(last_state(text)):
            total = count.total or self._totals.get(count.what, 0.0)
            if count.done > total:
                total = 0.0
            counter = self._counters.get((count.what, total))
            if counter is not None:
                counter.take(at, count.done)
                continue
            if len(self._counters) >= _MOST_COUNTERS:
                del self._counters[min(self._counters, key=lambda key: self._counters[key].seen)]
            mark = (at, count.done)
            self._counters[count.what, total] = _Counter(
                count.level, count.what, total, count.is_within, at, mark, mark, at
            )

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
                or (counter.is_through and counter.first == counter.last)
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
        """Estimate by epochs, of which the last one that was told is under way."""
        last, text = epochs.last[0], _text(epochs)
        inner = self._inner(last)
        share = min(inner.done / inner.total, 1.0) if inner else 0.0
        # Some programs count epochs from zero.
        over = epochs.done + (epochs.first[1] == 0) - 1
        done = min((over + share) / epochs.total, 1.0)
        pace = epochs.pace
        if pace is None and inner is not None and inner.pace is not None:
            pace = inner.pace * inner.total
        if pace is None:
            return Estimate(done, text)
        this = max(pace - max(now - last, 0.0), 0.0)
        return Estimate(done, text, this + max(epochs.total - over - 1, 0) * pace)

    def _inner(self, since: float) -> _Counter | None:
        """Return the largest counter of steps within the epoch that began at `since`."""
        steps = [
            counter
            for counter in self._counters.values()
            if counter.level is Level.STEP
            and counter.total > 0
            and counter.last[0] >= since
            and not counter.is_aside
        ]
        return max(steps, key=lambda counter: (counter.total, counter.seen), default=None)


def _text(counter: _Counter) -> str:
    return Count(counter.level, counter.what, counter.done, counter.total).text


def _by_steps(counter: _Counter, now: float) -> Estimate:
    text, done = _text(counter), min(counter.done / counter.total, 1.0)
    if done >= 1:
        return Estimate(1.0, text, 0.0)
    pace = counter.pace
    if pace is None:
        return Estimate(done, text)
    rest = (counter.total - counter.done) * pace
    # Less what was presumably done since its last line.
    return Estimate(done, text, max(rest - max(now - counter.last[0], 0.0), 0.0))


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
