"""Aligns text in columns, at most as wide as the terminal; draws series of values as blocks. Pure."""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainshed.cli.text.colours import faint

_GAP = "  "
_LEAST_FLEXIBLE = 8
"""Width below which a flexible column is not cut."""


_BLOCKS = "▁▂▃▄▅▆▇█"

_MIDDLE = "▄"

GAP = "·"
"""Stands for a value that is missing."""

_BEYOND = 2.0
"""Values further from the middle half than this many times its width are drawn at the edge, because one
outlier would make all others look alike."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    #: Whether cells are aligned to the right, as numbers are.
    right: bool = False
    #: Whether cells may be cut if the width does not suffice.
    flexible: bool = False


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], max_width: int | None = None
) -> list[list[str]]:
    """Return the cells of the titles and of `rows`, padded so that they align if joined by `joined`.

    `max_width`: maximum characters of a line, None = unlimited; flexible columns are cut, the first one
    first. The last cell of a row has no padding after it. Wider lines are possible if no flexible column is
    left.
    """
    lines = [[column.title for column in columns], *(list(map(_in_one_line, row)) for row in rows)]
    widths = [max(width(line[index]) for line in lines) for index in range(len(columns))]
    if max_width is not None:
        _shrink(columns, widths, max_width)
    return [
        [
            _padded(cell, widths[index], columns[index].right, index == len(columns) - 1)
            for index, cell in enumerate(line)
        ]
        for line in lines
    ]


def joined(cells: Sequence[str]) -> str:
    """Join the cells of a row to a line of the table."""
    return _GAP.join(cells).rstrip()


def first_few(names: Sequence[str], limit: int) -> str:
    """Return the first `limit` names in one line, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def titled(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], max_width: int | None = None
) -> list[str]:
    """Return the lines of a table whose cells have no colours: the titles, then a line for each row."""
    header, *cells = table(columns, rows, max_width)
    return [faint(joined(header)), *map(joined, cells)]


def pairs(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines `label  value` with aligned values. Further lines of a value stand below its first."""
    label_width = max((width(label) for label, _ in rows), default=0)
    lines: list[str] = []
    for label, value in rows:
        first, *more = value.splitlines() or [""]
        lines.append(_GAP.join((_padded(label, label_width), first)).rstrip())
        lines.extend((" " * (label_width + len(_GAP)) + line).rstrip() for line in more)
    return lines


def width(text: str) -> int:
    """Return the cells that a text takes on a terminal: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def cut(text: str, cells: int) -> str:
    """Return `text` in at most `cells` cells; if it is cut, it ends with an ellipsis."""
    if width(text) <= cells:
        return text
    kept = ""
    for character in text:
        if width(kept + character) > cells - 1:
            break
        kept += character
    return kept + "…"


def _in_one_line(text: str) -> str:
    """Replace everything unprintable by spaces: names are written by others, and must neither break the table
    nor control the terminal."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else " " for character in text)


def _shrink(columns: Sequence[Column], widths: list[int], max_width: int) -> None:
    missing = sum(widths) + len(_GAP) * (len(widths) - 1) - max_width
    for index, column in enumerate(columns):
        if missing > 0 and column.flexible:
            cells = min(missing, max(0, widths[index] - _LEAST_FLEXIBLE))
            widths[index] -= cells
            missing -= cells


def _padded(cell: str, size: int, right: bool = False, last: bool = False) -> str:
    cell = cut(cell, size)
    padding = " " * (size - width(cell))
    if right:
        return padding + cell
    return cell if last else cell + padding


def spark(values: Sequence[float | None]) -> str:
    """Draw values as blocks, one each, whose heights show the values. Equal values, or a single one, have the
    middle height."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return GAP * len(values)
    low, high = _bounds(known)
    if high <= low:
        return "".join(GAP if value is None else _MIDDLE for value in values)
    steps = len(_BLOCKS) - 1
    return "".join(
        GAP
        if value is None
        else _BLOCKS[round(min(1.0, max(0.0, (value - low) / (high - low))) * steps)]
        for value in values
    )


def best_so_far(
    values: Sequence[float | None], better: Callable[[float, float], float]
) -> list[float | None]:
    """Return, for each value, the best among it and those before it; None before the first value. `better`:
    chooses the better of two, such as `max` or `min`."""
    bests: list[float | None] = []
    best: float | None = None
    for value in values:
        if value is not None:
            best = value if best is None else better(best, value)
        bests.append(best)
    return bests


def grouped(
    values: Sequence[float | None], most: int, better: Callable[[float, float], float]
) -> list[float | None]:
    """Return at most `most` values: the best of each group of neighbours. Groups are of about equal size."""
    count = len(values)
    groups = min(count, max(1, most))
    return [
        best_so_far(values[number * count // groups : (number + 1) * count // groups], better)[-1]
        for number in range(groups)
    ]


def _bounds(known: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest value that are drawn apart (`_BEYOND`). `known`: ascending."""
    last = len(known) - 1
    lower, upper = known[round(last * 0.25)], known[round(last * 0.75)]
    reach = _BEYOND * (upper - lower)
    if not reach:
        return known[0], known[-1]
    return max(known[0], lower - reach), min(known[-1], upper + reach)
