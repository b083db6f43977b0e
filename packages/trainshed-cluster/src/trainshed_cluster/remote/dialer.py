"""The agent's end of the remote transport: it dials the service, and carries the connections of programs on
its node to the service's sockets."""

import asyncio
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from trainshed.eventloop.background import Crew
from trainshed.replica.system.listening import listen_unix
from trainshed_cluster.remote import credentials, greeting
from trainshed_cluster.remote.channel import Channel
from trainshed_cluster.remote.credentials import SERVER_NAME, Credential
from trainshed_cluster.remote.greeting import NotAdmitted, Streams

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
        #: Of all connections but conversations, to both sides.
        self._writers: WeakSet[asyncio.StreamWriter] = WeakSet()
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
        channel: Channel[Sent, Received] = Channel(
            await self._connected(greeting.CONTROL), self._received
        )
        self._crew.begin(self._watch(channel), "agent: looking after tunnels")
        return channel

    async def converse(self, stream: str, received: Any) -> Channel[Any, Any]:
        """Open the stream of that name, which the service expects, in one try. `received`: the type of the
        messages that come on it. Raises OSError."""
        return Channel(await self.open(f"{greeting.STREAM}{stream}"), received)

    async def open(self, destination: str) -> Streams:
        """Open a tunnel to that destination (`greeting`), in one try. Raises OSError."""
        reader, writer = await self._connected(destination)
        self._writers.add(writer)
        return reader, writer

    async def listen(self, destination: str, path: Path) -> asyncio.AbstractServer:
        """Carry each connection to a Unix socket, which is made here for our own user alone, through a tunnel
        to that destination. A connection waits some seconds for a service that is away, and for earlier ones
        if there are too many. Raises OSError."""

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.add(writer)
            self._crew.begin(
                self._carry((reader, writer), destination), f"agent: carrying to {destination}"
            )

        server = await asyncio.start_unix_server(begin, sock=listen_unix(path))
        self._servers.append(server)
        return server

    async def _carry(self, program: Streams, destination: str) -> None:
        try:
            async with self._room:
                await greeting.carry(program, await self._reached(program[1], destination))
        except OSError:
            pass
        finally:
            program[1].transport.abort()

    async def _reached(self, program: asyncio.StreamWriter, destination: str) -> Streams:
        """Return a tunnel for a program's connection, as soon as there can be one. Raises OSError if it takes
        too long, there will be none, or the program has hung up."""
        loop, pause = asyncio.get_running_loop(), _RETRY_PAUSE
        until = loop.time() + _RETRY_SECONDS
        while True:
            try:
                async with self._opening:
                    if program.is_closing():
                        raise ConnectionResetError("The program has hung up.")
                    return await self.open(destination)
            except NotAdmitted:
                raise
            except OSError:
                if loop.time() >= until or program.is_closing():
                    raise
            await asyncio.sleep(pause)
            pause *= 2

    async def _connected(self, destination: str) -> Streams:
        """Return a connection that the hub has accepted."""
        host, port = self._credential.host, self._credential.port
        writer = None
        try:
            async with asyncio.timeout(greeting.SECONDS):
                reader, writer = await asyncio.open_connection(
                    host, port, ssl=self._context, server_hostname=SERVER_NAME
                )
                writer.write(f"{destination}\n".encode())
                line = await greeting.read_line(reader)
                greeting.check_answer(line.decode(errors="replace"))
                return reader, writer
        except BaseException as failure:
            if writer is not None:
                writer.transport.abort()
            if isinstance(failure, TimeoutError):
                raise TimeoutError(
                    f"{host} port {port} did not answer in {greeting.SECONDS:g} s."
                ) from None
            raise

    async def _watch(self, channel: Channel[Sent, Received]) -> None:
        """End all tunnels if the connection to the service is cut, which tunnels with unsent bytes would not
        notice for long."""
        await channel.closed()
        if isinstance(channel.cause, TimeoutError):
            self._cut()

    def _cut(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()
