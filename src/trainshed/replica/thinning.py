"""Thins out what a replica's use was written down in (`usage`): the newest looks, and of the others as many as are of use.
Runs on Python 3.6.
"""

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

    Entry = dict[str, Any]
else:
    Entry = dict

_NEWEST = 500
_SPREAD = 1000


def read_lines(text: str) -> "list[Entry]":
    """What the lines say; those that are torn say nothing."""
    entries: "list[Entry]" = []
    for line in text.split("\n"):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)  # pyright: ignore[reportUnknownArgumentType] - JSON
    return entries


def thinned(entries: "Sequence[Entry]") -> "list[Entry]":
    """The newest ones, and of the others as many as are of use: each start and end, and the last look of each piece of
    time."""
    older, newest = entries[:-_NEWEST], entries[-_NEWEST:]
    times = [entry["at"] for entry in older if "at" in entry]
    if not times:
        return list(entries)
    # Powers of two: the pieces of next time are pairs of these, and what was kept is evenly spread still.
    piece = 0
    while (times[-1] - times[0]) >> piece >= _SPREAD:
        piece += 1
    kept: "list[Entry]" = []
    before = -1
    for entry in older:
        if "at" not in entry or entry.get("last"):
            kept.append(entry)
            before = -1
            continue
        number = entry["at"] >> piece
        if number == before:
            kept[-1] = entry
        else:
            kept.append(entry)
        before = number
    return kept + list(newest)
