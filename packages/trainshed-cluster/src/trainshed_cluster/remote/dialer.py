"""The agent's end of the remote transport: it dials the service, and carries the connections of programs on
its node to the service's doors."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from trainshed.eventloop.background import Crew
from trainshed.eventloop.joining import End
from trainshed.replica.system.listening import listen_unix
from trainshed_cluster.remote import credentials, greeting
from trainshed_cluster.remote.channel import Channel
from trainshed_cluster.remote.credentials import SERVER_NAME, Credential
from trainshed_cluster.remote.greeting import FirstLine, NotAdmitted, Streams, Tunnelled

Sent = TypeVar("Sent")
Received = TypeVar("Received")

_RETRY_SECONDS: Final = 10.0
"""For which a program's connection waits for a service that is away, as it does on the service's own machine
(`replica.endpoint.relay`)."""
_RETRY_PAUSE: Final = 0.1
"""Seconds, twice as many each time."""
_MOST_TUNNELS: Final = 1000
"""Carried at once, so that what programs open without end is held up on their node, not at the service."""
_MOST_OPENING: Final = 8
"""Opened at once: a handshake takes the service some milliseconds."""


class Dialer(Generic[Sent, Received]):
    """Dials one service as one agent. It belongs to one event loop."""

    def __init__(self, credential: Credential, received: Any) -> None:
        """`received`: the type of the service's messages. Raises OSError if the credential is invalid."""
        self._received = received
        self._crew = Crew()
        self._ends: set[asyncio.Transport] = set()
        self._tunnels: set[FirstLine] = set()
        self._servers: list[asyncio.AbstractServer] = []
        self._room = asyncio.Semaphore(_MOST_TUNNELS)
        self._opening = asyncio.Semaphore(_MOST_OPENING)
        self._context = credentials.client(credential)
        self._credential = credential

    async def close(self) -> None:
        """Stop listening, and end all tunnels. The owner of a conversation ends that."""
        for server in self._servers:
            server.close()
        self._cut()
        await self._crew.close()

    async def dial(self) -> Channel[Sent, Received]:
        """Begin the conversation, in one try. Raises NotAdmitted if the service no longer knows this agent,
        and other OSErrors if it cannot be reached now, or is not ours."""
        first = await self._connected(greeting.CONTROL)
        channel: Channel[Sent, Received] = Channel(self._received)
        self._accept(first, channel)
        self._crew.begin(self._watch(channel), "agent: looking after tunnels")
        return channel

    async def converse(self, stream: str, received: Any) -> Channel[Any, Any]:
        """Open the stream of that name, which the service expects, in one try. `received`: the type of the
        messages that come on it. Raises OSError."""
        first = await self._connected(f"{greeting.STREAM}{stream}")
        channel: Channel[Any, Any] = Channel(received)
        self._accept(first, channel)
        self._crew.begin(self._hold(first, channel.closed()), f"agent: stream {stream}")
        return channel

    async def open(self, door: str) -> Streams:
        """Open a connection to a door of the service, in one try. Raises OSError."""
        first = await self._connected(door)
        reader, writer = first.streams()
        self._crew.begin(self._hold(first, writer.wait_closed()), f"agent: a connection to {door}")
        return reader, writer

    async def listen(self, door: str, path: Path) -> asyncio.AbstractServer:
        """Carry each connection to a Unix socket, which is made here for our own user alone, to a door. A
        connection waits some seconds for a service that is away, and for earlier ones if there are too many.
        Raises OSError."""
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: Tunnelled(self._begin(door), self._ends), sock=listen_unix(path)
        )
        self._servers.append(server)
        return server

    def _begin(self, door: str) -> Callable[[End], None]:
        return lambda end: self._crew.begin(self._carry(end, door), f"agent: carrying to {door}")

    async def _carry(self, end: End, door: str) -> None:
        first = None
        try:
            async with self._room:
                first = await self._reached(end, door)
                left = asyncio.Event()
                self._accept(first, Tunnelled(end.join, set(), left=lambda _: left.set()))
                await self._hold(first, left.wait())
        except OSError:
            end.transport.abort()
        except asyncio.CancelledError:
            end.transport.abort()
            if first is not None:
                first.abort()
            raise

    async def _reached(self, end: End, door: str) -> FirstLine:
        """Return a connection to the door for `end`, as soon as there can be one. Raises OSError if it takes
        too long, there will be none, or `end` has closed."""
        loop, pause = asyncio.get_running_loop(), _RETRY_PAUSE
        until = loop.time() + _RETRY_SECONDS
        while True:
            try:
                async with self._opening:
                    if end.transport.is_closing():
                        raise ConnectionResetError("The program has hung up.")
                    return await self._connected(door)
            except NotAdmitted:
                raise
            except OSError:
                if loop.time() >= until or end.transport.is_closing():
                    raise
            await asyncio.sleep(pause)
            pause *= 2

    async def _hold(self, first: FirstLine, over: Awaitable[object]) -> None:
        """Keep track of a tunnel until it is `over`."""
        self._tunnels.add(first)
        try:
            with contextlib.suppress(OSError):
                await over
        finally:
            self._tunnels.discard(first)

    async def _connected(self, door: str) -> FirstLine:
        """Return a connection that the hub has accepted."""
        credential, first = self._credential, FirstLine()
        try:
            async with asyncio.timeout(greeting.SECONDS):
                await asyncio.get_running_loop().create_connection(
                    lambda: first,
                    credential.host,
                    credential.port,
                    ssl=self._context,
                    server_hostname=SERVER_NAME,
                )
                first.say(f"{door}\n".encode())
                greeting.check_answer((await first.line()).decode(errors="replace"))
        except TimeoutError:
            first.abort()
            where = f"{credential.host} port {credential.port}"
            raise TimeoutError(f"{where} did not answer in {greeting.SECONDS:g} s.") from None
        except BaseException:
            first.abort()
            raise
        return first

    def _accept(self, first: FirstLine, to: asyncio.Protocol) -> None:
        try:
            first.hand_over(to)
        except OSError:
            first.abort()
            raise

    async def _watch(self, channel: Channel[Sent, Received]) -> None:
        """End all tunnels if the connection to the service is cut, which tunnels with unsent bytes would not
        notice for long."""
        await channel.closed()
        if isinstance(channel.cause, TimeoutError):
            self._cut()

    def _cut(self) -> None:
        for transport in (*self._ends,):
            transport.abort()
        for first in (*self._tunnels,):
            first.abort()
