"""Aligned text: columns as wide as their cells, at most as wide as the terminal; sparklines. Pure."""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainshed.cli.text.colours import faint

_GAP = "  "
_LEAST_FLEXIBLE = 8


_BLOCKS = "▁▂▃▄▅▆▇█"

_MIDDLE = "▄"

GAP = "·"
"""Stands where there is no number."""

_BEYOND = 2.0
"""What lies so many times the middle half's width outside of that half is drawn at the edge: one failure must
not make all else look alike."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    #: Numbers, aligned at their end.
    right: bool = False
    #: May be cut when there is not enough width.
    flexible: bool = False


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], max_width: int | None = None
) -> list[list[str]]:
    """The cells of the title row and of `rows`, padded so that joined by two spaces they align.

    `max_width`: characters that a line may have; the first flexible column gives way. None: no bound. A row's
    last cell has no padding after it.
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
    """One line of a table."""
    return _GAP.join(cells).rstrip()


def first_few(names: Sequence[str], limit: int) -> str:
    """The first names in one line, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def titled(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], max_width: int | None = None
) -> list[str]:
    """The lines of a table whose cells have no colours: the titles, then a line for each row."""
    header, *cells = table(columns, rows, max_width)
    return [faint(joined(header)), *map(joined, cells)]


def pairs(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Lines `label  value`, the values aligned; a value's further lines stand below its first."""
    label_width = max((width(label) for label, _ in rows), default=0)
    lines: list[str] = []
    for label, value in rows:
        first, *more = value.splitlines() or [""]
        lines.append(_GAP.join((_padded(label, label_width), first)).rstrip())
        lines.extend((" " * (label_width + len(_GAP)) + line).rstrip() for line in more)
    return lines


def width(text: str) -> int:
    """Terminal cells that `text` takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def cut(text: str, cells: int) -> str:
    """`text` in at most `cells` cells; what is cut off shows as an ellipsis."""
    if width(text) <= cells:
        return text
    kept = ""
    for character in text:
        if width(kept + character) > cells - 1:
            break
        kept += character
    return kept + "…"


def _in_one_line(text: str) -> str:
    """Without what would break a table, or make a terminal do something: names are what somebody else has
    written."""
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
    """A block per value, higher for more; equal values, or a single one, stand in the middle."""
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
    """The best of each beginning. `better`: `max` or `min`."""
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
    """At most `most` values: the best of each group of neighbours, which are about as large as each other."""
    count = len(values)
    groups = min(count, max(1, most))
    return [
        best_so_far(values[number * count // groups : (number + 1) * count // groups], better)[-1]
        for number in range(groups)
    ]


def _bounds(known: Sequence[float]) -> tuple[float, float]:
    """`known`: ascending."""
    last = len(known) - 1
    lower, upper = known[round(last * 0.25)], known[round(last * 0.75)]
    reach = _BEYOND * (upper - lower)
    if not reach:
        return known[0], known[-1]
    return max(known[0], lower - reach), min(known[-1], upper + reach)
