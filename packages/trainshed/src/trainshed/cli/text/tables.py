"""Aligns text in columns, at most as wide as the terminal, and formats records as tables. Pure."""

import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import click

from trainshed.cli.text.colours import faint

_GAP = "  "
_MIN_FLEXIBLE = 8
"""Minimum width of a flexible column after it is cut."""
_MIN_WRAPPED = 24
"""Minimum width of wrapped text, even if the terminal is narrower."""
_MIN_READABLE = 12
"""A flexible column has at least this width if other columns can be omitted instead."""

NOTHING = "–"
"""The text of an empty cell."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a table of records."""

    title: str
    #: The field of the record, with dots between nested names; None = the whole record.
    path: str | None
    #: Formats the field's value, which is never None.
    show: Callable[[Any], str] = str
    #: Whether cells are aligned to the right, as for numbers.
    right: bool = False
    #: Whether cells may be cut if the terminal is too narrow.
    flexible: bool = False
    #: Whether long cells continue on further lines. Allowed only for the last column.
    wraps: bool = False
    #: Whether the column is omitted if it is empty.
    optional: bool = False
    #: Whether the column is omitted if the terminal is too narrow for all columns.
    spare: bool = False
    #: The colour of a record's cell; None = no colour.
    colour: Callable[[Any], str | None] = lambda _: None

    def cell(self, record: Any) -> str:
        """Return the text of a record's cell; "" if the value, or a key of a mapping, is missing."""
        value = record
        for name in self.path.split(".") if self.path else ():
            if isinstance(value, dict):
                value = cast(dict[str, Any], value).get(name)
            else:
                value = None if value is None else getattr(value, name)
        return "" if value is None else self.show(value)


def table_of(fields: Sequence[Field], records: Sequence[Any], max_width: int | None = None) -> list[str]:
    """Return the lines of a table of records, starting with the titles.

    `max_width`: maximum characters per line, or None. If the table is too wide, spare columns are omitted,
    the first one first. Then flexible columns are cut, the widest one first. Lines can still be wider than
    `max_width`.
    """
    cells = [(field, [field.cell(record) for record in records]) for field in fields]
    shown = [(field, texts) for field, texts in cells if any(texts) or not field.optional]
    if max_width is not None:
        spare = [column for column in shown if column[0].spare]
        while spare and sum(_readable(*column) for column in shown) > max_width:
            shown.remove(spare.pop(0))
    columns = [field for field, _ in shown]
    rows = zip(*([_in_one_line(text or NOTHING) for text in texts] for _, texts in shown), strict=True)
    lines = [[field.title for field in columns], *map(list, rows)]
    widths = [max(width(line[index]) for line in lines) for index in range(len(columns))]
    wrapped: list[list[str]] = [[] for _ in lines]
    if max_width is not None:
        _shrink(columns, widths, max_width)
        if columns and columns[-1].wraps:
            indent = sum(widths[:-1]) + len(_GAP) * (len(widths) - 1)
            widths[-1] = max(max_width - indent, _MIN_WRAPPED)
            for index, line in enumerate(lines):
                line[-1], *rest = wrap(line[-1], widths[-1])
                wrapped[index] = [" " * indent + text for text in rest]
    texts: list[str] = []
    for number, line in enumerate(lines):
        padded = [
            _pad(cell, widths[index], columns[index].right, index == len(columns) - 1)
            for index, cell in enumerate(line)
        ]
        if number:
            padded = [
                click.style(cell, fg=colour) if (colour := field.colour(records[number - 1])) else cell
                for field, cell in zip(columns, padded, strict=True)
            ]
            texts.append(_GAP.join(padded).rstrip())
            texts += wrapped[number]
        else:
            texts.append(faint(_GAP.join(padded).rstrip()))
    return texts


def first_few(names: Sequence[str], limit: int) -> str:
    """Return the first `limit` names in one line, and the number of omitted names."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def wrap(text: str, cells: int) -> list[str]:
    """Split `text` at spaces into lines of at most `cells` cells. Longer words, such as names to copy, are
    not split."""
    if width(text) <= cells:
        return [text]
    lines = textwrap.wrap(
        text, max(cells, 1), break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    return lines or [""]


def pairs(rows: Sequence[tuple[str, str]], max_width: int | None = None) -> list[str]:
    """Return lines `label value` with aligned values. Further lines of a value start below its first line.
    `max_width`: maximum characters per line if the words are short enough; None = unlimited."""
    label_width = max((width(label) for label, _ in rows), default=0)
    lines: list[str] = []
    for label, value in rows:
        parts = value.splitlines()
        if max_width is not None:
            cells = max(max_width - label_width - len(_GAP), _MIN_WRAPPED)
            parts = [line for part in parts for line in wrap(part, cells)]
        first, *more = parts or [""]
        lines.append(_GAP.join((_pad(label, label_width), first)).rstrip())
        lines.extend((" " * (label_width + len(_GAP)) + line).rstrip() for line in more)
    return lines


def width(text: str) -> int:
    """Return the number of terminal cells of a text: two for a wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def cut(text: str, cells: int) -> str:
    """Return `text` in at most `cells` cells. If it is cut, it ends with an ellipsis."""
    if width(text) <= cells:
        return text
    kept = ""
    for character in text:
        if width(kept + character) > cells - 1:
            break
        kept += character
    return kept + "…"


def _in_one_line(text: str) -> str:
    """Replace all unprintable characters by spaces: untrusted names must neither break the table nor control
    the terminal."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else " " for character in text)


def _readable(field: Field, texts: Sequence[str]) -> int:
    """Return the minimum width at which a column is readable, with the gap after it."""
    widest = max(map(width, (field.title, *texts)))
    limit = _MIN_READABLE if field.flexible else _MIN_WRAPPED if field.wraps else widest
    return len(_GAP) + min(widest, limit)


def _shrink(columns: Sequence[Field], widths: list[int], max_width: int) -> None:
    missing = sum(widths) + len(_GAP) * (len(widths) - 1) - max_width
    flexible = [index for index, column in enumerate(columns) if column.flexible]
    for _ in range(missing):
        widest = max(flexible, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= _MIN_FLEXIBLE:
            break
        widths[widest] -= 1


def _pad(cell: str, size: int, right: bool = False, last: bool = False) -> str:
    cell = cut(cell, size)
    padding = " " * (size - width(cell))
    if right:
        return padding + cell
    return cell if last else cell + padding
