"""Finds the step numbers in a program's log lines: which lines tell of progress, and what number they give.

Programs write steps in many ways, and one program also prints numbers that are not its own progress
("restored from step 100"). So the lines before a fault are examined first: the most frequent *kind* of line
is the one that counts, and lines of other kinds are ignored.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from msgspec import Struct

from trainshed.core.patterns import Regex, compile_regex
from trainshed.core.units import Nanos

_FINEST_FIRST: Final = ("global_step", "step", "iteration", "epoch")
_WORDS: Final[Mapping[str, str]] = {
    "globalstep": "global_step",
    "step": "step",
    "steps": "step",
    "iteration": "iteration",
    "iter": "iteration",
    "epoch": "epoch",
}
_STEP: Final = re.compile(
    r"""(?<![\w/.-])(?<!\bper\ )(?<!/\ )        # not "5 ms/step", not "time per step: 12"
    (global[_\s-]?step|steps?|iteration|iter|epoch)
    ["']?\s*+(?:[:=\#]\s*+)?[\[(]?\s*+          # possessive: a line of blanks costs no backtracking
    (\d{1,3}(?:,\d{3})+|\d{1,18})(?![\d.]*\.\d)""",
    re.IGNORECASE | re.VERBOSE,
)
_OF_CHECKPOINTS: Final = re.compile(r"restor|resum|load|saved|saving|checkpoint|ckpt", re.I)
_DIGITS: Final = re.compile(r"\d+")
_LARGEST: Final = 10**18
MOST_READ: Final = 4096
"""How many characters of a line are looked at: a step is at its beginning."""
_NEAR: Final = 200
"""How many characters before a number are searched for the word that tells one kind of line from another."""


class Line(Protocol):
    """A log line (`store.logs.lines.LogLine`). `at`: ns; `payload`: the JSON object of the line, if it is
    one."""

    @property
    def at(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def payload(self) -> Mapping[str, Any] | None: ...


class Step(Struct, frozen=True):
    """A step number and when it was written (ns)."""

    number: int
    at: Nanos


class Series(Struct, frozen=True):
    """The lines of one kind."""

    #: The word for the number (`step`, `epoch`, …).
    word: str
    #: The word before it; "{}" in JSON lines.
    before: str = ""
    #: A regular expression of the user's, which alone decides; None = there is none.
    pattern: Regex | None = None

    def step(self, line: Line) -> Step | None:
        """Return the step in the line; None if the line is not of this kind."""
        if self.pattern is not None:
            number = _own(self.pattern, line.text[:MOST_READ])
            return None if number is None else Step(number, line.at)
        return next((step for kind, step in _told(line) if kind == self), None)


def series_by(pattern: str) -> Series:
    """Return the series of the lines that match a regular expression; its first group, or all that it
    matches, is the step's number.

    Raise PatternError for an invalid one.
    """
    return Series("step", pattern=compile_regex(pattern))


def learned(lines: Iterable[Line]) -> Series | None:
    """Return the kind of line that tells of progress: the most frequent one, and of equally frequent ones the
    finest. None if there is none.

    Lines about checkpoints count only if there are no others.
    """
    progress: Counter[Series] = Counter()
    checkpoints: Counter[Series] = Counter()
    for line in lines:
        counter = checkpoints if _OF_CHECKPOINTS.search(line.text) else progress
        counter.update({kind for kind, _ in _told(line)})
    for counter in (progress, checkpoints):
        if counter:
            return max(counter, key=lambda kind: (counter[kind], -_FINEST_FIRST.index(kind.word)))
    return None


def _told(line: Line) -> list[tuple[Series, Step]]:
    """Return each number in the line that may be a step, the finest first."""
    pairs = [*_in_payload(line), *_in_text(line)]
    return sorted(pairs, key=lambda pair: _FINEST_FIRST.index(pair[0].word))


def _in_payload(line: Line) -> list[tuple[Series, Step]]:
    pairs: list[tuple[Series, Step]] = []
    for key, value in (line.payload or {}).items():
        word = _WORDS.get(re.sub(r"[\W_]", "", key.lower()))
        if word and isinstance(value, int) and not isinstance(value, bool):
            pairs.append((Series(word, "{}"), Step(value, line.at)))
    return pairs


def _in_text(line: Line) -> list[tuple[Series, Step]]:
    pairs: list[tuple[Series, Step]] = []
    text = line.text[:MOST_READ]
    for match in _STEP.finditer(text):
        word = _WORDS[re.sub(r"[\W_]", "", match[1].lower())]
        # In a long line only the words near a number count: there may be thousands of matches in it.
        words = text[max(0, match.start() - _NEAR) : match.start()].split()
        # Names and times before a number may hold digits that change from line to line.
        before = _DIGITS.sub("#", words[-1]) if words else ""
        pairs.append((Series(word, before), Step(int(match[2].replace(",", "")), line.at)))
    return pairs


def _own(pattern: Regex, text: str) -> int | None:
    number = pattern.first_in(text)
    if number is None:
        return None
    digits = number.replace(",", "").replace("_", "").strip()
    return int(digits) if digits.isdecimal() and len(digits) <= len(str(_LARGEST)) else None
