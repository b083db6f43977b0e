"""The hub is the service's end of the remote transport: agents dial it over TLS, and are admitted by name.

One connection of an agent is its conversation with the service; each other one is a tunnel, whose destination
is one of the service's Unix sockets, a stream that the service expects, or content for the node. A peer
without a certificate of ours gets no answer.
"""

import asyncio
import contextlib
import errno
import logging
import random
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from trainshed.eventloop.background import Crew
from trainshed.httpd.connections import Connections, HalfOpen, Limits
from trainshed.replica.system.listening import listen_tcp
from trainshed.replica.system.unix_sockets import reachable
from trainshed_cluster.remote import greeting
from trainshed_cluster.remote.channel import Channel
from trainshed_cluster.remote.credentials import Credential, Issuer, shown_end, shown_name
from trainshed_cluster.remote.greeting import Streams

log = logging.getLogger(__name__)

Sent = TypeVar("Sent")
Received = TypeVar("Received")

_LIMITS: Final = Limits(connections=256, head_seconds=greeting.SECONDS)
"""Of connections that have not said yet what they want."""
_MOST_OF_AGENT: Final = 1024
"""Connections of one agent."""
_LASTING_PORTS: Final = range(10000, 20000)
"""Neither replicas that share an address (20000 to 31999) nor Kubernetes' services (to 32767) listen there,
and the kernel lends none of them to outgoing connections (from 32768 on): it can be bound again later."""
_TRIES: Final = 100
_TAKEN_SECONDS: Final = 5.0
"""For so long a port is asked for again that somebody has."""
_LOOK_AGAIN_SECONDS: Final = 0.05
_NO_FILES_SECONDS: Final = 0.1


class Hub(Generic[Sent, Received]):
    """The server that agents dial. It belongs to one event loop."""

    def __init__(
        self,
        issuer: Issuer,
        *,
        host: str,
        port: int,
        received: Any,
        sockets: Mapping[str, Path],
        admits: Callable[[str], bool],
        serve: Callable[[Channel[Sent, Received]], Awaitable[None]],
        has_preamble: Callable[[str, bytes], bool],
        content: Callable[[str, str, asyncio.StreamWriter], Awaitable[None]] | None = None,
        dialled: str = "127.0.0.1",
        limits: Limits = _LIMITS,
    ) -> None:
        """`host` and `port`: where it listens; port 0 = any free one. `received`: the type of agents'
        messages. `sockets`: the service's Unix sockets by name.

        `admits`: whether an agent of that name is expected now; asked for each connection. `serve`: holds a
        conversation, which ends when it returns; an agent has one at a time, and a newer one ends the older.
        `has_preamble`: whether a replica of that agent begins its connections to the buckets with this line.
        `content`: sends an agent the content of a path, or the reason of a refusal, and closes the writer;
        None = no content is sent. `dialled`: the host that agents are told.
        """
        self._issuer = issuer
        self._host = host
        self._port = port
        self._received = received
        self._sockets = sockets
        self._admits = admits
        self._serve = serve
        self._has_preamble = has_preamble
        self._content = content
        self._dialled = dialled
        self._opening = Connections(limits)
        self._agents: dict[str, _Agent] = {}
        self._context: ssl.SSLContext | None = None
        self._expected: dict[tuple[str, str], _Expected] = {}
        self._crew = Crew()
        self._listener: socket.socket | None = None

    async def start(self) -> None:
        """Start to listen. Raises OSError if the port is taken."""
        self._context = self._issuer.server()
        self._listener = await self._listening()
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        self._crew.keep(self._take, "taking connections of agents")

    async def _listening(self) -> socket.socket:
        """Bind the port that running agents dial again after a restart. A process that a killed service was
        about to start may hold it for a moment, and nothing signals when that ends, so that binding is
        retried."""
        if not self._port:
            for port in random.sample(_LASTING_PORTS, _TRIES):
                with contextlib.suppress(OSError):
                    return listen_tcp(self._host, port)
        until = asyncio.get_running_loop().time() + _TAKEN_SECONDS
        while True:
            try:
                return listen_tcp(self._host, self._port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or asyncio.get_running_loop().time() > until:
                    raise
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def close(self) -> None:
        """Stop listening and end all connections."""
        for name in tuple(self._agents):
            self.drop(name)
        await self._crew.close()
        if self._listener is not None:
            self._listener.close()

    @property
    def port(self) -> int:
        return self._port

    def issue(self, name: str, ends: float) -> Credential:
        """Issue the credential of an agent, valid until `ends` (seconds since the epoch). The hub must have
        started. Takes a millisecond."""
        certificate, key = self._issuer.issue(name, ends)
        authority = self._issuer.authority
        return Credential(name, self._dialled, self._port, authority, certificate, key)

    def drop(self, name: str) -> None:
        """End all connections of an agent now. Only `admits` decides whether it may connect again."""
        agent = self._agents.get(name)
        if agent is not None:
            agent.cut()
        for key in [key for key in self._expected if key[0] == name]:
            _, future = self._expected.pop(key)
            if not future.done():
                future.set_exception(ConnectionResetError(f"agent {name}: dropped"))
                future.exception()

    def expect(self, name: str, stream: str, received: Any) -> "asyncio.Future[Channel[Any, Any]]":
        """Expect a stream that an agent will open under the name `stream`, which is used once. It is expected
        from this call on, so that the agent can be told, until it has come or the future is cancelled.
        `received`: the type of the messages that come on it."""
        key = name, stream
        future: asyncio.Future[Channel[Any, Any]] = asyncio.get_running_loop().create_future()
        if key in self._expected:
            raise ValueError(f"stream {stream!r} is expected already")
        self._expected[key] = received, future

        def over(done: "asyncio.Future[Channel[Any, Any]]") -> None:
            if key in self._expected and self._expected[key][1] is done:
                del self._expected[key]

        future.add_done_callback(over)
        return future

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._listener is not None
        while True:
            try:
                connection, address = await loop.sock_accept(self._listener)
            except OSError as failure:
                # There is no file handle for it: open connections will free some.
                log.warning("agent: a connection could not be taken: %s", failure)
                await asyncio.sleep(_NO_FILES_SECONDS)
                continue
            self._crew.begin(self._greet(connection, str(address[0])), "a connection of an agent")

    async def _greet(self, connection: socket.socket, address: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        half = HalfOpen(task)
        self._opening.open(half)
        streams = None
        try:
            streams = await self._secured(connection)
            line = (await greeting.read_line(streams[0])).decode(errors="replace")
        except (OSError, asyncio.CancelledError) as failure:
            # The connection broke off, took too long, or is no agent's: there is nobody to tell.
            # It may be an agent of a service of before that shows a certificate which is not ours.
            is_agents = isinstance(failure, ssl.SSLCertVerificationError)
            level = logging.WARNING if is_agents else logging.DEBUG
            log.log(level, "agent connection from %s not let in: %s", address, failure)
            if streams is not None:
                streams[1].transport.abort()
            connection.close()
            return
        finally:
            self._opening.closed(half)
        try:
            await self._let_in(streams, line)
        except OSError as failure:
            log.info("agent connection from %s has ended: %s", address, failure)
            streams[1].transport.abort()
        except BaseException:
            streams[1].transport.abort()
            raise

    async def _secured(self, connection: socket.socket) -> Streams:
        """Shake hands, and return the connection as streams. Raises OSError."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        connection.setblocking(False)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=self._context,
            ssl_handshake_timeout=self._opening.limits.head_seconds,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _let_in(self, streams: Streams, destination: str) -> None:
        """Serve a connection that has a valid certificate, to its end."""
        _, writer = streams
        certificate = writer.get_extra_info("peercert")
        name, left = shown_name(certificate), shown_end(certificate) - time.time()
        if not name or left <= 0 or not self._admits(name):
            _refuse(writer, greeting.NOT_ADMITTED)
            return
        agent = self._agents.setdefault(name, _Agent())
        if destination != greeting.CONTROL and len(agent.connections) >= _MOST_OF_AGENT:
            # A newer conversation replaces an older one.
            _refuse(writer, greeting.CLOSED, f"this agent has {_MOST_OF_AGENT} connections already")
            return
        agent.connections.add(writer)
        # The connection ends when its certificate expires, which was only checked at its beginning.
        end = asyncio.get_running_loop().call_later(left, writer.transport.abort)
        try:
            if destination == greeting.CONTROL:
                await self._converse(name, agent, streams)
            elif destination.startswith(greeting.STREAM):
                await self._hand_over(name, streams, destination.removeprefix(greeting.STREAM))
            elif destination.startswith(greeting.CONTENT) and self._content is not None:
                writer.write(greeting.answer(greeting.YES))
                await self._content(name, destination.removeprefix(greeting.CONTENT), writer)
                await writer.wait_closed()
            elif path := self._sockets.get(destination):
                await self._carry(name, streams, destination, path)
            else:
                _refuse(writer, greeting.CLOSED, f"there is no destination {destination!r}")
        finally:
            end.cancel()
            agent.connections.discard(writer)
            if not agent.connections and self._agents.get(name) is agent:
                del self._agents[name]

    async def _converse(self, name: str, agent: "_Agent", streams: Streams) -> None:
        _, writer = streams
        if agent.control is not None:
            agent.control.transport.abort()
        agent.control = writer
        async with agent.turn:
            if agent.control is not writer:
                writer.transport.abort()
                return
            channel: Channel[Sent, Received] = Channel(streams, self._received, name)
            writer.write(greeting.answer(greeting.YES))
            try:
                await self._serve(channel)
            finally:
                channel.close()
                if agent.control is writer:
                    agent.control = None
        if isinstance(channel.cause, TimeoutError):
            # The way to the node is cut, which tunnels with unsent bytes would not notice for long.
            agent.cut()

    async def _hand_over(self, name: str, streams: Streams, stream: str) -> None:
        """Hand a stream to who expects it, until it ends."""
        _, writer = streams
        received, expected = self._expected.pop((name, stream), (None, None))
        if expected is None or expected.done():
            _refuse(writer, greeting.CLOSED, "this stream is not expected")
            return
        channel: Channel[Any, Any] = Channel(streams, received)
        writer.write(greeting.answer(greeting.YES))
        expected.set_result(channel)
        await channel.closed()

    async def _carry(self, name: str, streams: Streams, destination: str, path: Path) -> None:
        """Carry a connection to a socket of the service, until it ends."""
        reader, writer = streams
        try:
            with reachable(str(path)) as short:
                inner = await asyncio.open_unix_connection(short)
        except OSError as failure:
            _refuse(writer, greeting.CLOSED, f"nobody answers there now: {failure.strerror}")
            return
        try:
            writer.write(greeting.answer(greeting.YES))
            if destination == greeting.BUCKETS:
                async with asyncio.timeout(self._opening.limits.head_seconds):
                    line = await greeting.read_line(reader)
                # A node may speak for no other replicas than those that run there.
                if not self._has_preamble(name, line + b"\n"):
                    log.warning("agent %s: it has no replica that calls as %r", name, line)
                    raise ConnectionRefusedError("no replica of this agent calls so")
                inner[1].write(line + b"\n")
            await greeting.carry(streams, inner)
        finally:
            inner[1].transport.abort()


def _refuse(writer: asyncio.StreamWriter, kind: str, why: str = "") -> None:
    """Refuse an agent's request, and close the connection."""
    writer.write(greeting.answer(kind, why))
    writer.close()


_Expected = tuple[Any, "asyncio.Future[Channel[Any, Any]]"]
"""The type of the messages that will come on a stream, and who waits for it."""


class _Agent:
    """The open connections of an agent."""

    def __init__(self) -> None:
        self.connections: set[asyncio.StreamWriter] = set()
        #: Its newest conversation.
        self.control: asyncio.StreamWriter | None = None
        self.turn = asyncio.Lock()

    def cut(self) -> None:
        for writer in tuple(self.connections):
            writer.transport.abort()
