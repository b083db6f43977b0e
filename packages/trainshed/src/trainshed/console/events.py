"""Writes server-sent events, for all streams of the console."""

from collections.abc import AsyncGenerator
from typing import Final

import msgspec

SILENCE: Final = 15.0
"""Seconds without an event after which a stream sends a comment, to show that it is alive."""
QUIET: Final = b": quiet\n\n"
"""The comment that is sent then."""


async def next_of(source: AsyncGenerator[bytes]) -> bytes | None:
    """Return the next item of a stream; None = it has ended."""
    return await anext(source, None)


def event(name: str, value: object) -> bytes:
    """Return one event, with `value` as JSON."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))
