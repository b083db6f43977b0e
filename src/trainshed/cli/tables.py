"""Aligned text: columns as wide as their cells, at most as wide as the terminal. Pure."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

_GAP = "  "
_LEAST_FLEXIBLE = 8


@dataclass(frozen=True, slots=True)
class Column:
    """`right`: numbers, aligned at their end. `flexible`: may be cut when there is not enough room."""

    title: str
    right: bool = False
    flexible: bool = False


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int | None = None
) -> list[list[str]]:
    """The cells of the title row and of `rows`, padded so that joined by two spaces they align.

    `room`: characters that a line may have; the first flexible column gives way. None: no bound. A row's
    last cell has no padding after it.
    """
    lines = [[column.title for column in columns], *(list(map(_in_one_line, row)) for row in rows)]
    widths = [max(width(line[index]) for line in lines) for index in range(len(columns))]
    if room is not None:
        _yield_room(columns, widths, room)
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


def pairs(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Lines `label  value`, the values aligned; a value's further lines stand below its first."""
    label_width = max((width(label) for label, _ in rows), default=0)
    found: list[str] = []
    for label, value in rows:
        first, *more = value.splitlines() or [""]
        found.append(_GAP.join((_padded(label, label_width), first)).rstrip())
        found.extend((" " * (label_width + len(_GAP)) + line).rstrip() for line in more)
    return found


def width(text: str) -> int:
    """Terminal cells that `text` takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def cut(text: str, room: int) -> str:
    """`text` in at most `room` cells; what is cut off shows as an ellipsis."""
    if width(text) <= room:
        return text
    kept = ""
    for character in text:
        if width(kept + character) > room - 1:
            break
        kept += character
    return kept + "…"


def _in_one_line(text: str) -> str:
    """Without what would break a table, or make a terminal do something: names are what somebody else has written."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else " " for character in text)


def _yield_room(columns: Sequence[Column], widths: list[int], room: int) -> None:
    missing = sum(widths) + len(_GAP) * (len(widths) - 1) - room
    for index, column in enumerate(columns):
        if missing > 0 and column.flexible:
            given = min(missing, max(0, widths[index] - _LEAST_FLEXIBLE))
            widths[index] -= given
            missing -= given


def _padded(cell: str, size: int, right: bool = False, last: bool = False) -> str:
    cell = cut(cell, size)
    padding = " " * (size - width(cell))
    if right:
        return padding + cell
    return cell if last else cell + padding
