"""The agent's end of the connections to the service. It connects to the hub (the service's server for
agents), and forwards connections of programs on the agent's node to sockets of the service."""

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

_RETRY_TIMEOUT: Final = 10.0
"""Seconds for which a program's connection waits for an unavailable service. A relay on the service's own
machine waits for the same time (`replica.endpoint.relay`)."""
_RETRY_INTERVAL: Final = 0.1
"""Seconds before the first retry. The interval doubles with each further retry."""
_MAX_TUNNELS: Final = 1000
"""Maximum number of open tunnels. Further connections of programs wait on the node, not at the service."""
_MAX_OPENING: Final = 8
"""Maximum number of TLS handshakes at the same time. Each handshake takes some milliseconds of the service's
CPU time."""


class Dialer(Generic[Sent, Received]):
    """Connects to one service as one agent. It belongs to one event loop."""

    def __init__(self, credential: Credential, received: Any) -> None:
        """`received`: the type of the service's messages. Raises OSError if the credential is invalid."""
        self._received = received
        self._crew = Crew()
        #: Writers of the connections of all tunnels: to the program and to the service.
        self._writers: WeakSet[asyncio.StreamWriter] = WeakSet()
        self._servers: list[asyncio.AbstractServer] = []
        self._tunnel_limit = asyncio.Semaphore(_MAX_TUNNELS)
        self._handshake_limit = asyncio.Semaphore(_MAX_OPENING)
        self._context = credentials.client(credential)
        self._credential = credential

    async def close(self) -> None:
        """Stop listening, and end all tunnels. Conversations continue until the callers of `dial` and
        `converse` end them."""
        for server in self._servers:
            server.close()
        self._break_connections()
        await self._crew.close()

    async def dial(self) -> Channel[Sent, Received]:
        """Start the conversation, which is the agent's connection for messages. Does not retry. Raises
        NotAdmitted if the service no longer expects this agent. Raises another OSError if the service is
        unavailable or its certificate is wrong."""
        channel: Channel[Sent, Received] = Channel(await self._connect(greeting.CONTROL), self._received)
        self._crew.begin(self._watch(channel), "agent: watching tunnels")
        return channel

    async def converse(self, stream: str, received: Any) -> Channel[Any, Any]:
        """Open a stream that the service expects. Does not retry. `stream`: the stream's name. `received`:
        the type of the messages that the agent receives on the stream. Raises OSError."""
        return Channel(await self.open(f"{greeting.STREAM}{stream}"), received)

    async def open(self, destination: str) -> Streams:
        """Open a tunnel, which is a connection to a destination at the service (see `greeting`). Does not
        retry. Raises OSError."""
        reader, writer = await self._connect(destination)
        self._writers.add(writer)
        return reader, writer

    async def listen(self, destination: str, path: Path) -> asyncio.AbstractServer:
        """Create a Unix socket at `path`, and forward each connection to it through a tunnel to
        `destination`. Only this process's user can connect. Connections wait for some seconds if the service
        is unavailable or too many tunnels are open. Raises OSError if the socket cannot be created."""

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.add(writer)
            self._crew.begin(
                self._forward((reader, writer), destination), f"agent: forwarding to {destination}"
            )

        server = await asyncio.start_unix_server(begin, sock=listen_unix(path))
        self._servers.append(server)
        return server

    async def _forward(self, program: Streams, destination: str) -> None:
        try:
            async with self._tunnel_limit:
                await greeting.forward(program, await self._open_for(program[1], destination))
        except OSError:
            pass
        finally:
            program[1].transport.abort()

    async def _open_for(self, program: asyncio.StreamWriter, destination: str) -> Streams:
        """Open a tunnel for a program's connection, with retries. Raises OSError if the time limit is
        reached, the service's hub rejects the tunnel, or the program has disconnected."""
        loop, pause = asyncio.get_running_loop(), _RETRY_INTERVAL
        until = loop.time() + _RETRY_TIMEOUT
        while True:
            try:
                async with self._handshake_limit:
                    if program.is_closing():
                        raise ConnectionResetError("The program has disconnected.")
                    return await self.open(destination)
            except NotAdmitted:
                raise
            except OSError:
                if loop.time() >= until or program.is_closing():
                    raise
            await asyncio.sleep(pause)
            pause *= 2

    async def _connect(self, destination: str) -> Streams:
        """Connect to the hub (the service's server for agents), send the destination, and return the
        connection after the hub accepts it."""
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
                    f"{host} port {port} did not respond within {greeting.SECONDS:g} s."
                ) from None
            raise

    async def _watch(self, channel: Channel[Sent, Received]) -> None:
        """End all tunnels if the connection for messages has timed out. Tunnels with unsent bytes would
        detect the failure much later."""
        await channel.wait_closed()
        if isinstance(channel.cause, TimeoutError):
            self._break_connections()

    def _break_connections(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()
