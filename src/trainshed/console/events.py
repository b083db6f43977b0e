"""Server-sent events, as all streams of the console write them."""

from collections.abc import AsyncGenerator
from typing import Final

import msgspec

SILENCE: Final = 15.0
"""Seconds after which a comment says that a stream lives."""
QUIET: Final = b": quiet\n\n"
"""Such a comment."""


async def next_of(source: AsyncGenerator[bytes]) -> bytes | None:
    """What a stream says next; None: it has ended."""
    return await anext(source, None)


def event(name: str, value: object) -> bytes:
    """One event; its data are JSON."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))
