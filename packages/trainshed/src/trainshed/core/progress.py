"""Estimates the progress and the remaining time of a program from the lines that it prints. Pure.

A line counts only if it contains the completed amount, and the total or the unit: bars of tqdm,
Keras, Lightning and Hugging Face, and lines that count epochs or steps. One of a program's
counters measures the whole program: its epochs if their total is known, otherwise a bar or steps
that do not start over repeatedly. The estimate assumes a constant speed; the time before a restart
does not count.
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
    #: The counted unit, such as "epoch"; for a bar the text before it, without its numbers; "" =
    #: unknown.
    what: str
    done: float
    #: 0 = unknown.
    total: float
    #: The rest of the line has numbers as well, as lines at the end of an epoch do.
    has_more: bool = False
    #: The line contains its epoch: it counts within that epoch, not over the whole program.
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
"""The level of a counter, by the word for one unit of it."""

_ASIDE: Final = re.compile(
    r"\b(?:map|filter|loading|downloading|tokeni[sz]ing|generating|casting|extracting|resolving|fetching"
    r"|creating|sanity checking|preparing|preprocessing|uploading|saving|scanning|compiling|building"
    r"|installing|validation|validating|valid|val|evaluation|evaluating|eval|testing|test|predicting)\b",
    re.IGNORECASE,
)
"""Names of work that is done before the training, or beside it."""

_NAME: Final = r"(epoch|step|iteration|iter|batch|round|generation|episode|update|timestep)s?"
_WORD: Final = (
    # Not "5 ms/step", not "time per step: 12".
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
_MAX_LINE_CHARS: Final = 2000
_MAX_NAME_CHARS: Final = 60


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
        # The line is about a step: its further numbers do not say that the epoch is over.
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


_MAX_COUNTERS: Final = 32
_NEARLY: Final = 0.97
"""A counter that has come so far counts as complete when it starts over."""


_MIN_IDLE: Final = 60.0
"""Seconds without a count that are never shown."""
_INTERVALS: Final = 3


class Estimate(Struct, frozen=True):
    """How far a program is."""

    #: From 0 to 1; None = not known.
    done: float | None
    #: In words, such as "epoch 3 of 10", with the time since the last count if that is unusually long.
    text: str
    #: Seconds that it will still run; None = too little is known.
    remaining: float | None = None


class _Counter(Struct):
    """One counter of a program and its observed growth."""

    #: As it was seen last, with its total.
    count: Count
    #: When it grew last, in seconds.
    at: float
    #: It started over after it was complete.
    is_repeated: bool = False
    #: It was seen before it was complete.
    has_grown: bool = False
    #: The first number of it.
    first: float = 0.0
    #: Number of lines of an epoch with more than its number, as at its end, minus the other lines.
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
    """Takes the lines of a program in their order, and estimates its progress. `began`: when the program was
    started, in seconds of the lines' clock; `totals`: the total of each count, for lines that do not give it
    (`totals_of`).

    Its memory is bounded, whatever it is given: 32 counters."""

    __slots__ = ("_began", "_counters", "_first", "_growths", "_totals")

    def __init__(
        self, began: float | None = None, totals: Mapping[str, float] | None = None
    ) -> None:
        self._began = began
        #: When it counted first since its start, and how much was done by then.
        self._first: tuple[float, float] | None = None
        self._totals = dict(totals or {})
        self._counters: dict[tuple[str, float], _Counter] = {}
        #: How often counters grew since the start of the program.
        self._growths = 0

    def restarted(self) -> None:
        """Record that the program was restarted: its earlier work no longer counts for its speed."""
        self._began = self._first = None
        self._growths = 0

    def feed(self, at: float, text: str) -> None:
        """Take a line that was printed at `at`, in seconds."""
        line_counts = counts(last_state(text))
        has_steps = any(count.level is Level.STEP for count in line_counts)
        for count in line_counts:
            self._take(at, count, 1 if count.has_more and not has_steps else -1)
        if self._first is None and (share := self._share()) is not None and line_counts:
            self._first = (at, share)

    def _take(self, at: float, count: Count, end: int) -> None:
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
        """Estimate how far the program is at `now`, which is no earlier than its last line; None if no line
        has counted anything."""
        if not self._counters:
            return None
        last = max(counter.at for counter in self._counters.values())
        silence = now - last
        idle = _idle_text(silence) if silence >= self._patience(last) else ""
        governor, share = self._governor(), self._share()
        if governor is None or share is None:
            # A share of one bar of many would be read as a share of the whole.
            return Estimate(None, self._shown().count.text + idle)
        text = governor.count.text + idle
        if share >= 1:
            return Estimate(1.0, text, None if idle else 0.0)
        began, before = self._first or (now, 1.0)
        if share <= before and self._began is not None:
            # It took no longer than the program so far.
            began, before = self._began, 0.0
        if share <= before or last <= began:
            return Estimate(share, text)
        rest = (last - began) / (share - before) * (1 - share)
        # Less what was presumably done since its last line.
        left = rest - max(silence, 0.0)
        is_over = left <= 0 and share < _NEARLY
        return Estimate(share, text, None if idle or is_over else max(left, 0.0))

    def _patience(self, last: float) -> float:
        """Return after how many seconds without a count the time is shown: a few usual intervals."""
        began = self._began if self._began is not None else self._first[0] if self._first else last
        return max(_MIN_IDLE, _INTERVALS * (last - began) / max(self._growths, 1))

    def _shown(self) -> _Counter:
        """Return the counter that is shown where none governs."""
        return max(
            self._counters.values(),
            key=lambda seen: (not seen.is_aside, seen.count.total > 0, seen.count.level, seen.at),
        )

    def _governor(self) -> _Counter | None:
        """Return the counter that measures the whole program; None if none does."""
        counters = self._counters.values()
        known = [seen for seen in counters if seen.count.total > 0 and not seen.count.is_within]
        epochs = [seen for seen in known if seen.count.level is Level.EPOCH]
        if epochs:
            return max(epochs, key=lambda seen: seen.at)
        # A counter that was only seen complete is ambiguous.
        once = [
            seen for seen in known if seen.has_grown and not (seen.is_repeated or seen.is_aside)
        ]
        if any(seen.count.level is Level.EPOCH for seen in counters):
            # There are epochs, but not how many of them; each epoch has bars of its own.
            most = max((seen.count.total for seen in known), default=0.0)
            once = [seen for seen in once if seen.count.total == most]
        ahead = [seen for seen in once if not seen.is_through]
        return ahead[0] if ahead else max(once, key=lambda seen: seen.at, default=None)

    def _share(self) -> float | None:
        """Return what part of the program is done; None if that is not known."""
        governor = self._governor()
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
