"""Events from the part in C, read from the records that it writes (`struct report` in frames.h)."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Iterator, NamedTuple, Tuple

from trainshed_reduction import wire
from trainshed_reduction.wire import Header

RESULT, MESSAGE, LOST, STRANGE, ODD = 1, 2, 3, 4, 5
_EVENT = struct.Struct("=iiQQII")
"""kind, lane or slot, position, acknowledged, offset and size of the text: `struct event`."""


class Result(NamedTuple):
    """The result of the frame at `position` of `lane` was written to its target."""

    lane: int
    position: int


class Message(NamedTuple):
    """A frame came that is no chunk. `lane`: on a reducer the connection's slot, here and below."""

    lane: int
    header: Header
    payload: bytes


class Lost(NamedTuple):
    """The connection broke, or cannot be used any more."""

    lane: int
    cause: str = ""


class Strange(NamedTuple):
    """A frame came that violates the protocol; nothing more is read."""

    lane: int


class Odd(NamedTuple):
    """A chunk came that does not match those of the other ranks; nothing more is read."""

    lane: int
    header: Header


Record = Tuple[int, int, int, int, bytes]
"""An event's kind, lane, position, acknowledged and text; frames.h says which of them each kind has."""


def message(lane: int, text: bytes) -> Message:
    """Return the event of a MESSAGE record."""
    at = wire.HEADER.size
    return Message(lane, wire.unpack(text[:at]), text[at:])


class Report:
    """The memory for the events of one run, and for their texts."""

    def __init__(self, events: int, text: int) -> None:
        self._capacity = events
        self._events = ctypes.create_string_buffer(events * _EVENT.size)
        self._text = ctypes.create_string_buffer(text)

    def of(self, run: Any, whose: object, seconds: float) -> Iterator[Record]:
        """Call `run` (`transfer_run` or `reducer_run`) once, and yield the records of its events."""
        room = self._events, self._capacity, self._text, len(self._text)
        count = run(whose, seconds, *room)
        records, texts = memoryview(self._events)[: count * _EVENT.size], memoryview(self._text)
        for kind, lane, position, acknowledged, offset, size in _EVENT.iter_unpack(records):
            text = bytes(texts[offset : offset + size]) if size else b""
            yield kind, lane, position, acknowledged, text
