"""The first lines of a connection from an agent to the hub (the service's server for agents).

After the TLS handshake, the agent sends one line with the destination of the connection. The hub answers with
one line: it accepts the connection, or rejects it with a reason.
"""

import asyncio
import contextlib
from typing import Final

from trainshed.eventloop.background import joined

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CONTROL: Final = "control"
"""Destination of the agent's conversation, which is its connection for messages. All other destinations are
tunnels to a stream, to content, or to a socket of the service."""
STREAM: Final = "stream:"
"""Prefix of the destination for a stream. The name of the stream follows. The service must expect a stream of
that name."""
CONTENT: Final = "content:"
"""Prefix of the destination for content. The path of a unit, which is a directory to fetch from the service,
follows (`content.library`)."""
BUCKETS: Final = "buckets"
"""Destination for gs:// and metadata. The first line of each connection identifies the replica
(`replica.protocol.preamble`)."""
SECONDS: Final = 10.0
"""Seconds within which both lines must be exchanged."""
YES: Final = "+"
NOT_ADMITTED: Final = "-not-admitted"
CLOSED: Final = "-closed"
_PIECE: Final = 1 << 16


class HubRefused(ConnectionError):
    """The hub (the server for agents) knows the agent, but rejects its request. The message contains the
    reason."""


class NotAdmitted(HubRefused):
    """The hub (the server for agents) does not expect an agent with this name."""


async def read_line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line without its newline. Raises OSError if the connection ends or the line is too long
    for the reader's buffer."""
    try:
        return (await reader.readuntil())[:-1]
    except asyncio.IncompleteReadError:
        raise ConnectionResetError("The other side has disconnected.") from None
    except asyncio.LimitOverrunError as error:
        raise ConnectionError(str(error)) from None


def answer(kind: str, why: str = "") -> bytes:
    return f"{kind} {why}".rstrip().encode() + b"\n"


def check_answer(line: str) -> None:
    """Check the answer of the hub, the server for agents. Raises NotAdmitted if the hub does not expect the
    agent, HubRefused if it rejects the destination, and ConnectionError if the answer is invalid."""
    kind, _, why = line.partition(" ")
    if kind == YES:
        return
    if kind == NOT_ADMITTED:
        raise NotAdmitted(why or "The service expects no agent of this name.")
    if kind.startswith("-"):
        raise HubRefused(why or kind)
    raise ConnectionError("The server at that address is not the agent port of a Trainshed service.")


async def forward(left: Streams, right: Streams) -> None:
    """Copy bytes in both directions until one side has finished. Then close both connections, because TLS
    cannot close only one direction. If a connection is lost or this call is cancelled, abort both
    connections."""
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
