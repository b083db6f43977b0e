"""What lines count in no known form: `3200/50000`, `3,200 of 50,000`, `35 %`, a column of a table. Pure.

A pair or a percentage that is found here is a guess: the estimator believes it only once it has grown towards
the same total a few times. What is known to be no count is left out: qualities such as an accuracy, sizes,
and which of how many workers prints.
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final

from trainshed.core.progress.lines import BESIDE, LEVELS, Count, Level, may_count

_AMOUNT: Final = r"(\d{1,3}(?:,\d{3}){1,4}|\d{1,12})"
_PAIR: Final = re.compile(
    rf"(?<![\w./,-])(?<!\d:){_AMOUNT}(?:\s{{0,3}}/|\s{{1,3}}(?:out )?of)\s{{0,12}}{_AMOUNT}"
    r"(?![\w/%]|[.,:]\d|\s?[kKMGT]i?B\b)"
)
_PERCENT: Final = re.compile(r"(?<![\w.,])(\d{1,3}(?:\.\d{1,3})?)\s?%")
_GOING: Final = re.compile(
    r"\b(?:progress|complete|completed|done|finished|processed|elapsed|remaining|eta)\b"
    r"|[━╸╺█▉▊▋▌▍▎▏▓▒░#=]{3}|[-.>]{5}|^[\s\[(]{0,8}\d{1,3}(?:\.\d{1,3})?\s?%",
    re.IGNORECASE,
)
"""What makes a percentage tell how far something is: a word, a bar, or that the line begins with it."""
_QUALITY: Final = re.compile(
    r"(?<![a-z])(?:acc|correct|err(?:or)?s?\b|scor|prec|recall|auc|f1|map|top\b|hits?\b|wins?\b|passed|success|reward"
    r"|mem|gpu|cpu|ram\b|disk|cache|util|usage|used|spars|dropout|ratio|rate\b)"
    r"|(?:rank|worker|node|process|proc|replica|shard|device|thread)\W{0,3}\Z",
    re.IGNORECASE,
)
"""Words before a number that does not tell how far something is."""
_NEAR: Final = 24
"""How many characters before a number such a word is looked for in."""
_NUMERIC: Final = re.compile(r"[-+]?(?:\d|nan|inf|\.\d)", re.IGNORECASE)
_CELL: Final = re.compile(r"(\d{1,12})(?:/(\d{1,12}))?")
_BREAK: Final = re.compile(r"[\s|]{1,80}")
_FEWEST_CELLS: Final = 3
_MOST: Final = 4
"""How many pairs, or percentages, of a line are looked at."""
_WIDEST: Final = 400
"""The most characters that a line of a table may have."""
_DIGIT: Final = re.compile(r"\d")


def guesses(text: str) -> tuple[Count, ...]:
    """Return the pairs of a line, or else its percentage, as far as they may tell how far something is."""
    found = [
        Count(Level.STEP, "", done, total, is_guess=True)
        for match in islice(_PAIR.finditer(text) if "/" in text or " of" in text else (), _MOST)
        if (total := _number(match[2])) > 1
        and 0 <= (done := _number(match[1])) <= total
        and not _is_quality(text, match.start())
    ]
    if found or "%" not in text or not _GOING.search(text):
        return tuple(found)
    for match in islice(_PERCENT.finditer(text), _MOST):
        if float(match[1]) <= 100 and not _is_quality(text, match.start()):
            return (Count(Level.STEP, "percent", float(match[1]), 100, is_guess=True),)
    return ()


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _is_quality(text: str, start: int) -> bool:
    before = text[max(0, start - _NEAR) : start]
    return _QUALITY.search(before) is not None or BESIDE.search(before) is not None


def column(text: str) -> tuple[int, str] | None:
    """Return the position and the word of the column of epochs, steps or the like in the head of a table;
    None if the line heads no such table."""
    if len(text) > _WIDEST or _DIGIT.search(text) or not may_count(text):
        return None
    cells = _cells(text)
    if len(cells) < _FEWEST_CELLS or not all(cell[0].isalpha() for cell in cells):
        return None
    for place, cell in enumerate(cells):
        if cell.lower() in LEVELS:
            return place, cell.lower()
    return None


def row(text: str, head: tuple[int, str]) -> Count | None:
    """Return what a row of the table counts in that column; None if the line is no row of it."""
    place, word = head
    cells = _cells(text)
    if len(cells) < max(_FEWEST_CELLS, place + 1):
        return None
    match = _CELL.fullmatch(cells[place])
    others = [cell for cell in cells[:_FEWEST_CELLS] if _NUMERIC.match(cell)]
    if match is None or len(others) < _FEWEST_CELLS:
        return None
    done, total = float(match[1]), float(match[2] or 0)
    return (
        Count(LEVELS[word], word, done, total, has_more=True)
        if not total or done <= total
        else None
    )


def _cells(text: str) -> Sequence[str]:
    return [cell for cell in _BREAK.split(text[:_WIDEST].strip(" |\r\n\t")) if cell]
