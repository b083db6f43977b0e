"""The first lines of a connection from an agent to the hub. After the handshake, the agent sends its
destination in one line. The hub's answer is one line. It accepts the connection, or contains the reason for a
rejection."""

import asyncio
import contextlib
from typing import Final

from trainshed.eventloop.background import joined

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CONTROL: Final = "control"
"""The conversation. All other destinations are tunnels to a stream, to content, or to a socket of the
service."""
STREAM: Final = "stream:"
"""Prefix of the destination for a stream. The name of a stream that the service expects follows it."""
CONTENT: Final = "content:"
"""Prefix of the destination for content. The path of a unit that the service sends follows it
(`content.library`)."""
BUCKETS: Final = "buckets"
"""Name of the buckets' socket. The first line of each connection identifies the replica
(`replica.protocol.preamble`)."""
SECONDS: Final = 10.0
"""Time limit of the greeting."""
YES: Final = "+"
NOT_ADMITTED: Final = "-not-admitted"
CLOSED: Final = "-closed"
_PIECE: Final = 1 << 16


class HubRefused(ConnectionError):
    """The hub knows the agent, but rejects its request. The message contains the reason."""


class NotAdmitted(HubRefused):
    """The hub does not expect an agent of this name."""


async def read_line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line without its newline. Raises OSError if the connection ends or the line is too long
    for the reader."""
    try:
        return (await reader.readuntil())[:-1]
    except asyncio.IncompleteReadError:
        raise ConnectionResetError("The other side has disconnected.") from None
    except asyncio.LimitOverrunError as error:
        raise ConnectionError(str(error)) from None


def answer(kind: str, why: str = "") -> bytes:
    return f"{kind} {why}".rstrip().encode() + b"\n"


def check_answer(line: str) -> None:
    """Check the hub's answer. Raises NotAdmitted, HubRefused, or ConnectionError for an invalid answer."""
    kind, _, why = line.partition(" ")
    if kind == YES:
        return
    if kind == NOT_ADMITTED:
        raise NotAdmitted(why or "No agent of this name is expected.")
    if kind.startswith("-"):
        raise HubRefused(why or kind)
    raise ConnectionError("The server at that address is not a hub of Trainshed.")


async def forward(left: Streams, right: Streams) -> None:
    """Copy bytes in both directions. TLS has no half-closed state: when one side has finished, both are
    closed. If one connection is lost or this call is cancelled, both are aborted."""
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
