"""Server-sent events, as all streams of the console write them."""

from typing import Final

import msgspec

SILENCE: Final = 15.0
"""Seconds after which a comment says that a stream lives."""
QUIET: Final = b": quiet\n\n"
"""Such a comment."""


def event(name: str, value: object) -> bytes:
    """One event; its data are JSON."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))
