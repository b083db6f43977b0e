"""Lines of NDJSON streams. Blank lines keep a connection without other lines open. Clients ignore them."""

from typing import Final

from trainshed.wire.trainshed_v1.record import Record, encode

KEEP_ALIVE_LINE: Final = b"\n"


def line(value: Record) -> bytes:
    """Return a record as one line of a stream."""
    return encode(value) + b"\n"
