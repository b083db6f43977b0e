"""The protocol by which a connection from an agent to the hub begins: after the handshake the agent says in
one line where it leads, its destination, and the hub answers in one line that it may, or why not.
"""

import asyncio
import contextlib
from typing import Final

from trainshed.eventloop.background import joined

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CONTROL: Final = "control"
"""The conversation. All else is the destination of a tunnel: one of these, or a socket of the service."""
STREAM: Final = "stream:"
"""Followed by the name of a stream that the service expects."""
CONTENT: Final = "content:"
"""Followed by the path of a unit that the service sends (`content.library`)."""
BUCKETS: Final = "buckets"
"""The socket at which a connection says in its first line whose it is (`replica.protocol.preamble`)."""
SECONDS: Final = 10.0
"""For the whole of it."""
YES: Final = "+"
NOT_ADMITTED: Final = "-not-admitted"
CLOSED: Final = "-closed"
_PIECE: Final = 1 << 16


class Refused(ConnectionError):
    """The hub knows the agent, but refuses its request. The message says why."""


class NotAdmitted(Refused):
    """No agent of this name is expected (any more)."""


async def read_line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line without its newline. Raises OSError if none comes, or it is too long for the
    reader."""
    try:
        return (await reader.readuntil())[:-1]
    except asyncio.IncompleteReadError:
        raise ConnectionResetError("The other side has hung up.") from None
    except asyncio.LimitOverrunError as error:
        raise ConnectionError(str(error)) from None


def answer(kind: str, why: str = "") -> bytes:
    return f"{kind} {why}".rstrip().encode() + b"\n"


def check_answer(line: str) -> None:
    """Check the hub's answer. Raises NotAdmitted, Refused, or ConnectionError if it is no answer of a hub."""
    kind, _, why = line.partition(" ")
    if kind == YES:
        return
    if kind == NOT_ADMITTED:
        raise NotAdmitted(why or "No agent of this name is expected.")
    if kind.startswith("-"):
        raise Refused(why or kind)
    raise ConnectionError("What answers there is no hub of Trainshed.")


async def carry(left: Streams, right: Streams) -> None:
    """Carry bytes both ways. TLS knows no end of one direction alone: when either side has said all, both are
    closed, and if one is lost or this is cancelled, both are cut."""
    directions = joined(_copy(left[0], right[1])), joined(_copy(right[0], left[1]))
    is_whole = False
    try:
        ended, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        is_whole = not any(direction.exception() for direction in ended)
    finally:
        for direction in directions:
            direction.cancel()
        for _, writer in (left, right):
            if is_whole:
                writer.close()
            else:
                writer.transport.abort()
        await asyncio.gather(*directions, return_exceptions=True)
    for _, writer in (left, right):
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()
