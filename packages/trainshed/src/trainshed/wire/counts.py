"""Limits the number of values in one request, and checks it before anything is read, so that small requests
cannot cause much work.

`core.specs` decides what a job may hold; this limits what is walked to find that out.
"""

import re
from typing import Final

from trainshed.wire.status import Violation, WireError

MAX_VALUES: Final = 50_000
"""Texts, numbers, objects and lists in one request."""
MAX_ENTRIES: Final = 10_000
"""Entries of one list or map."""

_SMALL: Final = 16 << 10
"""Bytes of a request that is not counted."""
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[,\[{]', re.DOTALL)
"""A text, or a character before a value. Linear time: a text without an end extends to the end of the
data."""


def check_text(data: bytes | bytearray) -> None:
    """Refuse JSON with too many values. Raises WireError. Takes milliseconds for acceptable requests."""
    if len(data) <= _SMALL:
        return
    # This includes those within texts; most requests need no better count.
    if data.count(b",") + data.count(b"[") + data.count(b"{") < MAX_VALUES:
        return
    values = texts = 0
    for token in _TOKEN.finditer(data):
        if data[token.start()] == ord('"'):
            texts += 1
        else:
            values += 1
        if values >= MAX_VALUES or texts > 2 * MAX_VALUES:
            raise too_many_values()


def entries_fault(path: str, count: int) -> str:
    """Return the error text for a list or map of so many entries; "" if there are not too many."""
    if count <= MAX_ENTRIES:
        return ""
    return f"Invalid value at '{path}', {count} entries are given; at most {MAX_ENTRIES} are read."


def too_many_values() -> WireError:
    text = f"Invalid JSON payload received. The request has more than {MAX_VALUES} values."
    return WireError((Violation("", text),))
