"""Lines of NDJSON streams. A blank line keeps a silent stream alive. Clients skip blank lines."""

from typing import Final

from trainshed.wire.trainshed_v1.record import Record, encode

KEEP_ALIVE_LINE: Final = b"\n"


def line(value: Record) -> bytes:
    """Return one line of a stream."""
    return encode(value) + b"\n"
