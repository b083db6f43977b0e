"""The protocol by which a connection from an agent to the hub begins: after the handshake the agent says in
one line what it wants, and the hub answers in one line that it may, or why not.
"""

import asyncio
from typing import Any, Final

from trainshed.eventloop.joining import End

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CONTROL: Final = "control"
"""The conversation itself; all else is a door of the service, or a stream."""
STREAM: Final = "stream:"
"""Followed by the name of a stream that the service expects."""
CONTENT: Final = "content:"
"""Followed by the path of a unit that the service sends (`content.library`)."""
BUCKETS: Final = "buckets"
"""The door at which a connection says in its first line whose it is."""
SECONDS: Final = 10.0
"""For the whole of it."""
LONGEST_LINE: Final = 4096
YES: Final = "+"
NOT_ADMITTED: Final = "-not-admitted"
CLOSED: Final = "-closed"


class Refused(ConnectionError):
    """The hub knows the agent, but refuses its request. The message says why."""


class NotAdmitted(Refused):
    """No agent of this name is expected (any more)."""


class FirstLine(asyncio.Protocol):
    """The asyncio protocol of a connection until one line has come; what follows is for the next protocol."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._came = bytearray()
        self._is_ended = False
        self._lost: Exception | None = None

    async def line(self) -> bytes:
        """Wait for the line; return it without its newline. Raises ConnectionError, OSError if none comes."""
        return await self._line

    def say(self, line: bytes) -> None:
        """Write a line of ours."""
        if self.transport is not None:
            self.transport.write(line)

    def accept(self, to: asyncio.Protocol) -> None:
        """Accept the agent's request, and have the connection served by `to`. Raises OSError if it is lost
        already."""
        self.say(answer(YES))
        self.hand_over(to)

    def refuse(self, kind: str, why: str = "") -> None:
        """Refuse the agent's request, and close the connection."""
        self.say(answer(kind, why))
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def info(self, name: str) -> Any:
        """Return a fact about the transport."""
        return self.transport.get_extra_info(name) if self.transport is not None else None

    def hand_over(self, to: asyncio.Protocol, again: bytes = b"") -> None:
        """Have the connection served by `to`, which gets `again` before what follows. Raises OSError if it is
        lost already."""
        transport = self.transport
        if transport is None or self._lost is not None or transport.is_closing():
            raise ConnectionResetError("The connection has ended.") from self._lost
        transport.set_protocol(to)
        transport.resume_reading()
        to.connection_made(transport)
        if again or self._came:
            to.data_received(again + bytes(self._came))
        if self._is_ended and not to.eof_received():
            transport.close()

    def streams(self) -> Streams:
        """Return the connection as asyncio's reader and writer, for what follows. Raises OSError if it is
        lost already."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1 << 18, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        self.hand_over(protocol)
        assert self.transport is not None
        return reader, asyncio.StreamWriter(self.transport, protocol, reader, loop)

    def abort(self) -> None:
        """Drop the connection, whatever its state."""
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._came += data
        if self._line.done():
            return
        line, end, rest = self._came.partition(b"\n")
        if len(line) > LONGEST_LINE:
            self._fail(ConnectionError(f"a line of more than {LONGEST_LINE} bytes"))
            self.abort()
        elif end and self.transport is not None:
            self._came = rest
            self._line.set_result(bytes(line))
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self._is_ended = True
        if self._line.done():
            # TLS cannot be half-closed, and warns if it is told to.
            return self.info("sslcontext") is None
        self._fail(ConnectionResetError("The other side has hung up."))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = exc or ConnectionResetError("The other side has hung up.")
        self._fail(self._lost)

    def _fail(self, cause: Exception) -> None:
        if not self._line.done():
            self._line.set_exception(cause)
            # Retrieved, because nothing may wait for the line.
            self._line.exception()


def answer(kind: str, why: str = "") -> bytes:
    """Return the line by which the hub answers."""
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


class Tunnelled(End):
    """An end of a program's connection that is carried over TLS, which knows no end of one direction alone:
    when either side has said all, both are closed."""

    def eof_received(self) -> bool:
        return False
