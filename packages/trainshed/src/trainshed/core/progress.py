"""Estimates the progress and the remaining time of a program from its printed lines. Pure.

A line counts only if it contains the completed amount, and the total or the unit. Such lines are bars of
tqdm, Keras, Lightning and Hugging Face, and lines that count epochs or steps. One of a program's counters
measures the whole program: its epochs if their total is known, otherwise a bar or steps that do not start
over repeatedly. The estimate assumes a constant speed. The time before a restart does not count.
"""

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace


class Level(enum.IntEnum):
    """The size of a counted unit. For example, one epoch contains many steps."""

    STEP = 0
    EPOCH = 1


class Count(Struct, frozen=True):
    """A counter in a line: the completed amount and the total."""

    level: Level
    #: The counted unit, such as "epoch". For a bar, the text before the bar without its numbers. "" if
    #: unknown.
    what: str
    done: float
    #: The total amount, or 0 if unknown.
    total: float
    #: Whether the line contains further numbers, as at the end of an epoch.
    has_more: bool = False
    #: Whether the line also contains the epoch. The counter then restarts in each epoch.
    is_within: bool = False

    @property
    def text(self) -> str:
        """The counter as text, such as "epoch 3 of 10"."""
        done, total = (f"{n:,.0f}" if n >= 10_000 else f"{n:g}" for n in (self.done, self.total))
        counted = f"{done} of {total}" if self.total else done
        return f"{self.what} {counted}" if self.what in LEVELS else counted


LEVELS: Final = {
    **dict.fromkeys(("epoch", "round", "generation", "episode"), Level.EPOCH),
    **dict.fromkeys(("step", "iteration", "iter", "batch", "update", "timestep"), Level.STEP),
}
"""The level of a counter, by the word for one unit."""

_ASIDE: Final = re.compile(
    r"\b(?:map|filter|loading|downloading|tokeni[sz]ing|generating|casting|extracting|resolving|fetching"
    r"|creating|sanity checking|preparing|preprocessing|uploading|saving|scanning|compiling|building"
    r"|installing|validation|validating|valid|val|evaluation|evaluating|eval|testing|test|predicting)\b",
    re.IGNORECASE,
)
"""Names of work outside the training, such as the loading of data. Counters of such work do not measure the
progress of the whole program."""

_NAME: Final = r"(epoch|step|iteration|iter|batch|round|generation|episode|update|timestep)s?"
_WORD: Final = (
    # Do not match "5 ms/step" and "time per step: 12".
    rf"(?<![\w/])(?<!\bper )(?:global[_ ]?|train_|training_|current_|total_(?=times))?{_NAME}\b"
)
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
    # Bars of Keras: `12/50 ━━━` and `12/50 - 4s`.
    re.compile(rf"^\s{{0,12}}{_NUMBER}/{_NUMBER} (?:[━╸╺\[]|- \d)"),
    # Lines of PyTorch's examples: `[6400/60000 (11%)]`.
    re.compile(rf"\[{_NUMBER}/{_NUMBER} \(\s{{0,3}}\d{{1,3}}(?:\.\d{{1,3}})?%\)\]"),
)
_ROUND: Final = re.compile(r"^\[(\d{1,9})\]\s{1,4}[\w' @]{1,60}[-:]")
"""`[12] train-rmse:0.4`, as XGBoost and LightGBM print their rounds."""
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]{0,12}[A-Za-z]")
_DIGITS: Final = re.compile(r"\d{1,12}")
_MULTIPLES: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_MAX_LINE_CHARS: Final = 2000
_MAX_NAME_CHARS: Final = 60


def counts(text: str) -> tuple[Count, ...]:
    """Return all counters in a line that `last_state` has shortened. Epochs come before steps, and later
    counters come before earlier ones."""
    words, bars = _words(text), _bars(text)
    if bars:
        # The numbers after the epoch belong to the bar. They do not show the end of the epoch.
        words = [replace(count, has_more=False) for count in words if count.level]
        bars = [replace(bar, is_within=bool(words)) for bar in bars]
    return tuple(sorted(words + bars, key=lambda count: -count.level))


def last_state(text: str) -> str:
    """Return the visible text of a line that was overwritten with carriage returns, without colors. Only the
    end of a long line is returned."""
    text = text[-_MAX_LINE_CHARS:].rstrip("\r\x08").rpartition("\r")[2]
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
        # The line describes a step. Its further numbers do not show the end of the epoch.
        return [replace(count, has_more=False) for count in words]
    return words


def _bars(text: str) -> list[Count]:
    if bar := _BAR.search(text):
        done, total = float(bar[2]) * _MULTIPLES[bar[3]], float(bar[4]) * _MULTIPLES[bar[5]]
        if total >= max(done, 1):
            name = _DIGITS.sub("#", text[: bar.start()].strip(" :"))[-_MAX_NAME_CHARS:]
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
    """Return the totals from a program's command line (`--epochs 10`, `--max_steps=500`,
    `trainer.max_epochs=10`), by unit. They complete counters without a total."""
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


_MAX_COUNTERS: Final = 32
_NEARLY: Final = 0.97
"""A counter with this share of its total counts as complete when it starts over."""


_MIN_IDLE: Final = 60.0
"""Minimum time in seconds without a count before this time is displayed."""
_INTERVALS: Final = 3


class Estimate(Struct, frozen=True):
    """The estimated progress of a program."""

    #: Completed share from 0 to 1, or None if unknown.
    done: float | None
    #: The progress as text, such as "epoch 3 of 10". After an unusually long time without a count, the text
    #: includes that time.
    text: str
    #: Remaining seconds, or None if unknown.
    remaining: float | None = None


class _Counter(Struct):
    """One counter of a program and its observed growth."""

    #: The last observed count with its total.
    count: Count
    #: Time of the last growth, in seconds.
    at: float
    #: Whether the counter started over after it was complete.
    is_repeated: bool = False
    #: Whether the counter was observed before it was complete.
    has_grown: bool = False
    #: The first observed number of the counter.
    first: float = 0.0
    #: Number of lines with this counter that appear at the end of an epoch, minus the number of its other
    #: lines.
    ends: int = 0

    @property
    def share(self) -> float:
        return min(self.count.done / self.count.total, 1.0)

    @property
    def is_aside(self) -> bool:
        return _ASIDE.match(self.count.what) is not None

    @property
    def is_through(self) -> bool:
        return self.count.total > 0 and self.share >= _NEARLY


class Tracker:
    """Reads the lines of a program in order, and estimates its progress.

    `began`: the start of the program, in seconds of the lines' clock. `totals`: the total amount by unit, as
    `totals_of` returns it, for lines without a total. The memory is limited to 32 counters for any input.
    """

    __slots__ = ("_began", "_counters", "_first", "_growths", "_totals")

    def __init__(self, began: float | None = None, totals: Mapping[str, float] | None = None) -> None:
        self._began = began
        #: Time and completed share of the first count since the program's start.
        self._first: tuple[float, float] | None = None
        self._totals = dict(totals or {})
        self._counters: dict[tuple[str, float], _Counter] = {}
        #: Number of counter changes since the start of the program.
        self._growths = 0

    def record_restart(self) -> None:
        """Record that the program was restarted. Its earlier work no longer counts for its speed."""
        self._began = self._first = None
        self._growths = 0

    def feed(self, at: float, text: str) -> None:
        """Process a line that was printed at `at`, in seconds."""
        line_counts = counts(last_state(text))
        has_steps = any(count.level is Level.STEP for count in line_counts)
        for count in line_counts:
            self._update_counter(at, count, 1 if count.has_more and not has_steps else -1)
        if self._first is None and (share := self._share()) is not None and line_counts:
            self._first = (at, share)

    def _update_counter(self, at: float, count: Count, end: int) -> None:
        total = count.total or self._totals.get(count.what, 0.0)
        count = replace(count, total=0.0 if count.done > total else total)
        key = (count.what, count.total)
        counter = self._counters.get(key)
        if counter is None:
            if len(self._counters) >= _MAX_COUNTERS:
                del self._counters[min(self._counters, key=lambda key: self._counters[key].at)]
            counter = self._counters[key] = _Counter(count, at, first=count.done)
        elif count.done == counter.count.done:
            return
        counter.is_repeated |= counter.is_through and count.done < counter.count.done
        counter.count, counter.at = count, at
        self._growths += 1
        counter.has_grown |= not counter.is_through
        counter.ends += end

    def estimate(self, now: float) -> Estimate | None:
        """Return the estimated progress at `now`, which is not before the program's last line. Return None if
        no line contains a counter."""
        if not self._counters:
            return None
        last = max(counter.at for counter in self._counters.values())
        silence = now - last
        idle = _idle_text(silence) if silence >= self._max_silence(last) else ""
        governor, share = self._program_counter(), self._share()
        if governor is None or share is None:
            # Return no share, because users may mistake the share of one bar for the share of the whole
            # program.
            return Estimate(None, self._displayed_counter().count.text + idle)
        text = governor.count.text + idle
        if share >= 1:
            return Estimate(1.0, text, None if idle else 0.0)
        began, before = self._first or (now, 1.0)
        if share <= before and self._began is not None:
            # If the share has not changed since the first count, assume that the work took the time since the
            # program's start.
            began, before = self._began, 0.0
        if share <= before or last <= began:
            return Estimate(share, text)
        rest = (last - began) / (share - before) * (1 - share)
        # Subtract the time since the last line.
        left = rest - max(silence, 0.0)
        is_over = left <= 0 and share < _NEARLY
        return Estimate(share, text, None if idle or is_over else max(left, 0.0))

    def _max_silence(self, last: float) -> float:
        """Return the maximum number of seconds without a count before this time is displayed: a few usual
        intervals."""
        began = self._began if self._began is not None else self._first[0] if self._first else last
        return max(_MIN_IDLE, _INTERVALS * (last - began) / max(self._growths, 1))

    def _displayed_counter(self) -> _Counter:
        """Return the counter to display if no counter measures the whole program."""
        return max(
            self._counters.values(),
            key=lambda seen: (not seen.is_aside, seen.count.total > 0, seen.count.level, seen.at),
        )

    def _program_counter(self) -> _Counter | None:
        """Return the counter that measures the whole program, or None."""
        counters = self._counters.values()
        known = [seen for seen in counters if seen.count.total > 0 and not seen.count.is_within]
        epochs = [seen for seen in known if seen.count.level is Level.EPOCH]
        if epochs:
            return max(epochs, key=lambda seen: seen.at)
        # Ignore a counter that was observed only when complete: it may count only a part of the work.
        once = [seen for seen in known if seen.has_grown and not (seen.is_repeated or seen.is_aside)]
        if any(seen.count.level is Level.EPOCH for seen in counters):
            # The total number of epochs is unknown, and each epoch has its own bars. Only the counters with
            # the largest total can measure the whole program.
            most = max((seen.count.total for seen in known), default=0.0)
            once = [seen for seen in once if seen.count.total == most]
        ahead = [seen for seen in once if not seen.is_through]
        return ahead[0] if ahead else max(once, key=lambda seen: seen.at, default=None)

    def _share(self) -> float | None:
        """Return the completed share of the program, or None if unknown."""
        governor = self._program_counter()
        if governor is None:
            return None
        count = governor.count
        if count.level is not Level.EPOCH or count.done != int(count.done):
            return governor.share
        over = min(count.done + (governor.ends > 0) + (governor.first == 0) - 1, count.total)
        inner = max(
            (
                (seen.count.total, seen.share)
                for seen in self._counters.values()
                if seen.count.level is Level.STEP
                and seen.count.total > 0
                and seen.at >= governor.at
                and not seen.is_aside
            ),
            default=(0.0, 0.0),
        )[1]
        return min((over + inner) / count.total, 1.0)


_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def _idle_text(seconds: float) -> str:
    size, unit = next((unit for unit in _UNITS if seconds >= 2 * unit[0]), _UNITS[-1])
    return f", no progress for {int(seconds / size)} {unit}"


def remaining_text(remaining: float | None) -> str:
    """Return a time in seconds as text, such as `about 12 min left`, or "" if unknown."""
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
