"""The lines of streams of NDJSON. A blank line now and then keeps a silent stream alive; readers skip it."""

from typing import Final

from trainshed.wire.trainshed_v1.record import Record, encoded

SIGN_OF_LIFE: Final = b"\n"


def line(value: Record) -> bytes:
    """Return one line of a stream."""
    return encoded(value) + b"\n"
