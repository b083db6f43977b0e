"""Formats the lines of NDJSON streams. A blank line keeps a connection open while no other lines are sent.
Clients ignore blank lines."""

from typing import Final

from trainshed.wire.trainshed_v1.record import Record, encode

KEEP_ALIVE_LINE: Final = b"\n"


def line(value: Record) -> bytes:
    """Return a record as one line of a stream."""
    return encode(value) + b"\n"
