"""How many values one request may have: looked at before anything is read, so that small things cannot cost
much.

What a job may hold is `core.specs`' to say; this bounds what is walked to find that out.
"""

import re
from typing import Final

from google.protobuf.message import Message

from trainshed.wire import plans
from trainshed.wire.plans import Shape
from trainshed.wire.status import Violation, WireError

MAX_VALUES: Final = 50_000
"""Texts, numbers, objects and lists in one request."""
MAX_ENTRIES: Final = 10_000
"""In one list or map."""

_SMALL: Final = 16 << 10
"""Bytes that need no counting."""
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[,\[{]', re.DOTALL)
"""A text, or what a value follows. Linear: a text that does not end reaches to the end."""


def check_text(data: bytes | bytearray) -> None:
    """Refuse JSON with too many values. Raises WireError. Takes milliseconds for what is right."""
    if len(data) <= _SMALL:
        return
    # Those within texts, too: most requests need no better count than this.
    if data.count(b",") + data.count(b"[") + data.count(b"{") < MAX_VALUES:
        return
    values = texts = 0
    for token in _TOKEN.finditer(data):
        if data[token.start()] == ord('"'):
            texts += 1
        else:
            values += 1
        if values >= MAX_VALUES or texts > 2 * MAX_VALUES:
            raise _too_many_values()


def entries_fault(path: str, count: int) -> str:
    """What is wrong with a list or map of so many entries; "" if nothing is."""
    if count <= MAX_ENTRIES:
        return ""
    return f"Invalid value at '{path}', {count} entries are given; at most {MAX_ENTRIES} are read."


def check_message(message: Message) -> None:
    """The same bounds for a request that came as a message. Raises WireError."""
    if _count(message, "", 0) > MAX_VALUES:
        raise _too_many_values()


def _count(message: Message, path: str, count: int) -> int:
    """`count` and the values in the message; stops when they are too many."""
    plan = plans.plan_for(message)
    for descriptor, content in message.ListFields():
        field = plan.by_number[descriptor.number]
        below = field.value.plan if field.value.is_message else None
        if field.shape is Shape.ONE and (below is None or below.is_small):
            count += 1 if below is None else 1 + len(below.by_number)
            continue
        where = f"{path}.{field.name}" if path else field.name
        if field.shape is not Shape.ONE and (fault := entries_fault(where, len(content))):
            raise WireError((Violation(where, fault),))
        values = plans.children(field.shape, content)
        count += len(values)
        if below is None:
            continue
        if below.is_small:
            count += len(values) * len(below.by_number)
            continue
        for child in values:
            if count > MAX_VALUES:
                return count
            count = _count(child, where, count)
    return count


def _too_many_values() -> WireError:
    text = f"Invalid JSON payload received. The request has more than {MAX_VALUES} values."
    return WireError((Violation("", text),))
