"""What one line of a program counts: bars of tqdm, Keras, Lightning and Hugging Face, and lines that count
epochs or steps. Pure.

Guesses nothing: a line counts only if it tells how much is done, and either how much there is or what is
counted.
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
    #: The rest of the line has numbers as well, as lines at the end of an epoch do.
    has_more: bool = False
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
    "epoch": Level.EPOCH,
    "round": Level.EPOCH,
    "generation": Level.EPOCH,
    "episode": Level.EPOCH,
    "step": Level.STEP,
    "iteration": Level.STEP,
    "iter": Level.STEP,
    "batch": Level.STEP,
    "update": Level.STEP,
    "timestep": Level.STEP,
}
"""The level of what is counted, by the word for one unit of it."""
_NAMES: Final = (
    r"map|filter|loading|downloading|tokeni[sz]ing|generating|casting|extracting|resolving|fetching"
    r"|creating|sanity checking|preparing|preprocessing|uploading|saving|scanning|compiling|building"
    r"|installing|validation|validating|valid|val|evaluation|evaluating|eval|testing|test|predicting"
)
_ASIDE: Final = re.compile(rf"^(?:{_NAMES})\b", re.IGNORECASE)
"""Names of bars of work that is done before the training, or beside it."""

BESIDE: Final = re.compile(rf"\b(?:{_NAMES})\b", re.IGNORECASE)
"""The same names within a line, before the count."""

_NAME: Final = r"(epoch|step|iteration|iter|batch|round|generation|episode|update|timestep)s?"
_WORD: Final = rf"\b(?:global_|train_|training_|current_|total_(?=times))?{_NAME}\b"
_NUMBER: Final = r"(\d{1,12})"
_COUNTED: Final = re.compile(
    rf"{_WORD}[\s:=#\[]{{0,16}}{_NUMBER}\s{{0,3}}(?:/|of)\s{{0,12}}{_NUMBER}",
    re.IGNORECASE,
)
_NAMED: Final = re.compile(
    rf"{_WORD}(?:\(train(?:ing)?\))?['\"]?(?:\s{{0,3}}[:=#]?|\s{{0,24}}\|)\s{{0,3}}['\"\[]?(\d{{1,12}}(?:\.\d{{1,12}})?)(?![\d.]*[/\d%])",
    re.IGNORECASE,
)
_ALL: Final = re.compile(
    rf"\b(?:total|max|num)_{_NAME}['\"]?\s{{0,3}}[:=]\s{{0,3}}{_NUMBER}", re.IGNORECASE
)
"""`"step": 10, "total_steps": 800`"""
_AMOUNT: Final = r"(\d{1,12}(?:\.\d{1,6})?)([kMG]?)"
_BAR: Final = re.compile(rf"(\d{{1,3}})%\|[^|]{{0,300}}\|\s{{0,3}}{_AMOUNT}/{_AMOUNT}")
_KERAS: Final = re.compile(rf"^\s{{0,12}}{_NUMBER}/{_NUMBER} (?:[━╸╺\[]|- \d)")
_RICH: Final = re.compile(rf"━[ ━╸╺]{{0,200}}{_NUMBER}/{_NUMBER} ")
_SHARE: Final = re.compile(rf"\[{_NUMBER}/{_NUMBER} \(\s{{0,3}}\d{{1,3}}(?:\.\d{{1,3}})?%\)\]")
_PAIR: Final = re.compile(
    rf"\[\s{{0,8}}\d{{1,12}}(?:/\d{{1,12}})?\]:?\s?\[\s{{0,8}}{_NUMBER}/\s{{0,8}}{_NUMBER}\]"
)
"""`[3][ 10/80]` or `[3/20][10/80]`, as many programs count an epoch and the steps in it."""
_PAIRED: Final = re.compile(rf"\[\s{{0,8}}{_NUMBER}/\s{{0,8}}{_NUMBER}\]:?\s?(?=\[)")
"""The epoch of such a pair, which has no word for it."""
_LEADING: Final = re.compile(
    rf"^\[\s{{0,8}}{_NUMBER}/\s{{0,8}}{_NUMBER}\]\s.{{0,80}}?(?:loss|acc|error|score|rmse|auc)",
    re.IGNORECASE,
)
"""`[03/10] train_loss: 0.3`"""
_ROUND: Final = re.compile(r"^\[(\d{1,9})\]\s{1,4}[\w' @]{1,60}[-:]")
"""`[12]\ttrain-rmse:0.4`, as XGBoost and LightGBM print their rounds."""
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]{0,12}[A-Za-z]")
_DIGITS: Final = re.compile(r"\d{1,12}")
_MANY: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_LONGEST: Final = 2000
_LONGEST_NAME: Final = 60
_MARKS: Final = (
    "/",
    " of ",
    "poch",
    "POCH",
    "ound",
    "tep",
    "ter",
    "atch",
    "eneration",
    "pisode",
    "pdate",
)


def may_count(text: str) -> bool:
    """Whether a line may count anything: a cheap test before the patterns, False only if it counts
    nothing."""
    return text.startswith("[") or any(mark in text for mark in _MARKS)


def counts(text: str) -> tuple[Count, ...]:
    """Return all that a line (`last_state`) counts: epochs before steps, and of either the last one first."""
    if not may_count(text):
        return ()
    worded = _words(text)
    inner = _bars(text)
    if (
        inner
        and not worded
        and (match := _PAIRED.search(text))
        and _PAIR.match(text, match.start())
    ):
        done, total = int(match[1]), int(match[2])
        worded = [Count(Level.EPOCH, "epoch", done, total)] if total >= max(done, 1) else []
    if inner:
        # The numbers behind the epoch are the bar's: they do not say that the epoch is over.
        worded = [
            Count(count.level, count.what, count.done, count.total)
            for count in worded
            if count.level
        ]
        if worded:
            inner = [replace(bar, is_within=True) for bar in inner]
    worded += inner
    return tuple(sorted(worded, key=lambda count: -count.level))


def last_state(text: str) -> str:
    """Return what is left to see of a line that was overwritten, without colours; of a long line, its end."""
    text = text[-_LONGEST:].rstrip("\r\x08").rpartition("\r")[2]
    if "\x1b" in text or "\x08" in text:
        text = _COLOURS.sub("", text).rpartition("\x08")[2]
    return text


def _words(text: str) -> list[Count]:
    words: list[Count] = []
    known: set[str] = set()
    for match in reversed(list(_COUNTED.finditer(text))):
        word, done, total = match[1].lower(), int(match[2]), int(match[3])
        if 0 < total >= done and word not in known:
            known.add(word)
            words.append(Count(LEVELS[word], word, done, total, _says_more(text, match.end())))
    alls = {match[1].lower(): int(match[2]) for match in _ALL.finditer(text)}
    for match in reversed(list(_NAMED.finditer(text))):
        word = match[1].lower()
        if word not in known:
            known.add(word)
            total = alls.get(word, 0)
            if total >= max(float(match[2]), 1):
                words.append(Count(LEVELS[word], word, float(match[2]), total))
                continue
            more = _says_more(text, match.end()) or _says_more(text[: match.start()], 0)
            words.append(Count(LEVELS[word], word, float(match[2]), 0, more))
    if not words and (match := _ROUND.match(text)):
        return [Count(Level.EPOCH, "round", float(match[1]), 0, True)]
    if any(count.level is Level.STEP and count.total for count in words):
        # The line is about a step: its further numbers do not say that the epoch is over.
        return [Count(count.level, count.what, count.done, count.total) for count in words]
    return words


def _says_more(text: str, start: int) -> bool:
    return _DIGITS.search(text, start) is not None


def _bars(text: str) -> list[Count]:
    if bar := _BAR.search(text):
        done, total = float(bar[2]) * _MANY[bar[3]], float(bar[4]) * _MANY[bar[5]]
        if total >= max(done, 1):
            name = _DIGITS.sub("#", text[: bar.start()].strip(" :"))[-_LONGEST_NAME:]
            return [Count(Level.STEP, name, done, total)]
    for pattern in (_KERAS, _SHARE, _RICH, _PAIR, _LEADING):
        if match := pattern.search(text):
            done, total = int(match[1]), int(match[2])
            if total >= max(done, 1):
                is_beside = BESIDE.search(text, 0, match.start()) is not None
                return [Count(Level.STEP, "validation" if is_beside else "", done, total)]
    return []


def is_aside(count: Count) -> bool:
    """Whether it counts work that is done before the training, or beside it, such as validation."""
    return _ASIDE.match(count.what) is not None


_ARGUMENT: Final = re.compile(
    r"(?:--?)?(?:[\w-]{1,40}\.){0,4}(?:num[_-]|n[_-]|max[_-]|total[_-])?(?:train[_-]|boost[_-])?"
    r"(epoch|round|generation|episode|step|iter|iteration|estimator|update|timestep)s?(?:=(.{1,12}))?",
    re.IGNORECASE,
)
_SAME: Final = {"estimator": "round"}


def totals_of(arguments: Sequence[str]) -> Mapping[str, float]:
    """Return the totals that a program is given on its command line (`--epochs 10`, `--max_steps=500`), also
    as settings (`trainer.max_epochs=10`, `SOLVER.MAX_ITER 400`), by what is counted. They are for lines that
    count without a total."""
    by_word: dict[str, float] = {}
    for place, argument in enumerate(arguments):
        match = _ARGUMENT.fullmatch(argument)
        if match is None or not (argument.startswith("-") or "." in argument or match[2]):
            continue
        value = match[2] or (arguments[place + 1] if place + 1 < len(arguments) else "")
        if re.fullmatch(r"\d{1,9}(?:\.0)?", value) and float(value):
            word = match[1].lower()
            by_word[_SAME.get(word, word)] = float(value)
    return by_word
