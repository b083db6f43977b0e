"""The hub is the server at the service to which agents connect, over TLS. It authenticates agents by the
names in their certificates.

One connection of an agent is its conversation with the service, for messages. All other connections are
tunnels: to a Unix socket of the service, to a stream that the service expects, or to content for the node. A
peer without a valid certificate receives no response.
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
from trainshed_cluster.remote.credentials import Credential, Issuer, certificate_expiry, certificate_name
from trainshed_cluster.remote.greeting import Streams

log = logging.getLogger(__name__)

Sent = TypeVar("Sent")
Received = TypeVar("Received")

_LIMITS: Final = Limits(connections=256, head_seconds=greeting.SECONDS)
"""Limits for connections whose destination is not known yet."""
_MAX_AGENT_CONNECTIONS: Final = 1024
"""Maximum number of connections of one agent."""
_PORTS: Final = range(10000, 20000)
"""The hub (the server for agents) chooses its port in this range, so that it can open the same port again
after a restart. Other programs rarely use such ports: the kernel chooses ports of outgoing connections from
32768 on, replicas that share an address listen on 20000 to 31999, and Kubernetes' services listen on other
ports, up to 32767."""
_MAX_PORT_TRIES: Final = 100
_BIND_TIMEOUT: Final = 5.0
"""Seconds for which the hub (the server for agents) tries to open a port that is in use."""
_BIND_INTERVAL: Final = 0.05
_ACCEPT_RETRY_INTERVAL: Final = 0.1


class Hub(Generic[Sent, Received]):
    """The server to which agents connect. It belongs to one event loop."""

    def __init__(
        self,
        issuer: Issuer,
        *,
        host: str,
        port: int,
        received: Any,
        sockets: Mapping[str, Path],
        is_admitted: Callable[[str], bool],
        serve: Callable[[Channel[Sent, Received]], Awaitable[None]],
        has_preamble: Callable[[str, bytes], bool],
        content: Callable[[str, str, asyncio.StreamWriter], Awaitable[None]] | None = None,
        dialed_host: str = "127.0.0.1",
        limits: Limits = _LIMITS,
    ) -> None:
        """Create a hub (a server for agents) that is not listening yet.

        Args:
            host: Address to listen on.
            port: Port to listen on; 0 = any free one.
            received: Type of agents' messages.
            sockets: The service's Unix sockets by name.
            is_admitted: Returns whether an agent of that name is expected; called for each connection.
            serve: Serves a conversation, which ends when it returns. A newer conversation of the same agent
                ends the older one.
            has_preamble: Returns whether the line identifies a replica of that agent. It is the first line of
                a connection to the buckets.
            content: Sends an agent the content of a path, or the reason of a rejection, and then closes the
                writer; None = the hub sends no content.
            dialed_host: Host to which agents connect, for their credentials.
        """
        self._issuer = issuer
        self._host = host
        self._port = port
        self._received = received
        self._sockets = sockets
        self._admits = is_admitted
        self._serve = serve
        self._has_preamble = has_preamble
        self._content = content
        self._dialed_host = dialed_host
        self._opening = Connections(limits)
        self._agents: dict[str, _Agent] = {}
        self._context: ssl.SSLContext | None = None
        self._expected: dict[tuple[str, str], _ExpectedStream] = {}
        self._crew = Crew()
        self._listener: socket.socket | None = None

    async def start(self) -> None:
        """Start listening. Raises OSError if the port is in use."""
        self._context = self._issuer.server()
        self._listener = await self._bind()
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        self._crew.keep(self._accept, "accepting connections of agents")

    async def _bind(self) -> socket.socket:
        """Open the port. After a restart, open the same port again, because running agents connect to it. If
        the port is in use, retries for some seconds, because a process that a killed service was starting may
        still use it."""
        if not self._port:
            for port in random.sample(_PORTS, _MAX_PORT_TRIES):
                with contextlib.suppress(OSError):
                    return listen_tcp(self._host, port)
        until = asyncio.get_running_loop().time() + _BIND_TIMEOUT
        while True:
            try:
                return listen_tcp(self._host, self._port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or asyncio.get_running_loop().time() > until:
                    raise
            await asyncio.sleep(_BIND_INTERVAL)

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
        """Issue the credential of an agent. `ends`: expiry time in seconds since the epoch. Call this after
        `start`. Takes a millisecond."""
        certificate, key = self._issuer.issue(name, ends)
        authority = self._issuer.authority
        return Credential(name, self._dialed_host, self._port, authority, certificate, key)

    def drop(self, name: str) -> None:
        """End all connections of an agent. Whether the agent may connect again depends on `is_admitted`."""
        agent = self._agents.get(name)
        if agent is not None:
            agent.abort()
        for key in [key for key in self._expected if key[0] == name]:
            _, future = self._expected.pop(key)
            if not future.done():
                future.set_exception(ConnectionResetError(f"agent {name}: dropped"))
                future.exception()

    def expect(self, name: str, stream: str, received: Any) -> "asyncio.Future[Channel[Any, Any]]":
        """Allow an agent to open a stream. Returns a future, whose result is the stream's channel after the
        agent has opened the stream. The caller cancels the future to stop waiting.

        Args:
            stream: Unique name of the stream.
            received: Type of the messages on the stream.
        """
        key = name, stream
        future: asyncio.Future[Channel[Any, Any]] = asyncio.get_running_loop().create_future()
        if key in self._expected:
            raise ValueError(f"a stream named {stream!r} is already expected")
        self._expected[key] = received, future

        def over(done: "asyncio.Future[Channel[Any, Any]]") -> None:
            if key in self._expected and self._expected[key][1] is done:
                del self._expected[key]

        future.add_done_callback(over)
        return future

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._listener is not None
        while True:
            try:
                connection, address = await loop.sock_accept(self._listener)
            except OSError as failure:
                # The process has too many open files. Wait until a connection ends.
                log.warning("agent: cannot accept a connection: %s", failure)
                await asyncio.sleep(_ACCEPT_RETRY_INTERVAL)
                continue
            self._crew.begin(self._greet(connection, str(address[0])), "a connection of an agent")

    async def _greet(self, connection: socket.socket, address: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        half = HalfOpen(task)
        self._opening.add(half)
        streams = None
        try:
            streams = await self._handshake(connection)
            line = (await greeting.read_line(streams[0])).decode(errors="replace")
        except (OSError, asyncio.CancelledError) as failure:
            # The connection was lost or timed out, or its peer has no valid certificate. A certificate of an
            # unknown authority may belong to an agent of an earlier service.
            is_agents = isinstance(failure, ssl.SSLCertVerificationError)
            level = logging.WARNING if is_agents else logging.DEBUG
            log.log(level, "agent connection from %s rejected: %s", address, failure)
            if streams is not None:
                streams[1].transport.abort()
            connection.close()
            return
        finally:
            self._opening.remove(half)
        try:
            await self._admit(streams, line)
        except OSError as failure:
            log.info("agent connection from %s has ended: %s", address, failure)
            streams[1].transport.abort()
        except BaseException:
            streams[1].transport.abort()
            raise

    async def _handshake(self, connection: socket.socket) -> Streams:
        """Perform the TLS handshake, and return the connection as streams. Raises OSError if the peer is not
        an agent."""
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

    async def _admit(self, streams: Streams, destination: str) -> None:
        """Serve an authenticated connection until it ends. `destination`: its first line."""
        _, writer = streams
        certificate = writer.get_extra_info("peercert")
        name, left = certificate_name(certificate), certificate_expiry(certificate) - time.time()
        if not name or left <= 0 or not self._admits(name):
            _refuse(writer, greeting.NOT_ADMITTED)
            return
        agent = self._agents.setdefault(name, _Agent())
        if destination != greeting.CONTROL and len(agent.connections) >= _MAX_AGENT_CONNECTIONS:
            # The limit does not apply to conversations: if an agent starts a new conversation, the hub (this
            # server for agents) ends the older conversation.
            _refuse(writer, greeting.CLOSED, f"this agent already has {_MAX_AGENT_CONNECTIONS} connections")
            return
        agent.connections.add(writer)
        # TLS verifies the certificate only at the start, so end the connection when the certificate expires.
        end = asyncio.get_running_loop().call_later(left, writer.transport.abort)
        try:
            if destination == greeting.CONTROL:
                await self._converse(name, agent, streams)
            elif destination.startswith(greeting.STREAM):
                await self._pass_stream(name, streams, destination.removeprefix(greeting.STREAM))
            elif destination.startswith(greeting.CONTENT) and self._content is not None:
                writer.write(greeting.answer(greeting.YES))
                await self._content(name, destination.removeprefix(greeting.CONTENT), writer)
                await writer.wait_closed()
            elif path := self._sockets.get(destination):
                await self._forward(name, streams, destination, path)
            else:
                _refuse(writer, greeting.CLOSED, f"destination {destination!r} does not exist")
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
            # The node is unreachable. Abort its tunnels, too, because tunnels with unsent bytes would detect
            # this much later.
            agent.abort()

    async def _pass_stream(self, name: str, streams: Streams, stream: str) -> None:
        """Pass a stream that an agent has opened to the caller of `expect`, and wait for the stream's end."""
        _, writer = streams
        received, expected = self._expected.pop((name, stream), (None, None))
        if expected is None or expected.done():
            _refuse(writer, greeting.CLOSED, "this stream is not expected")
            return
        channel: Channel[Any, Any] = Channel(streams, received)
        writer.write(greeting.answer(greeting.YES))
        expected.set_result(channel)
        await channel.wait_closed()

    async def _forward(self, name: str, streams: Streams, destination: str, path: Path) -> None:
        """Forward a connection to a socket of the service until either side ends."""
        reader, writer = streams
        try:
            with reachable(str(path)) as short:
                inner = await asyncio.open_unix_connection(short)
        except OSError as failure:
            _refuse(writer, greeting.CLOSED, f"the socket does not respond: {failure.strerror}")
            return
        try:
            writer.write(greeting.answer(greeting.YES))
            if destination == greeting.BUCKETS:
                async with asyncio.timeout(self._opening.limits.head_seconds):
                    line = await greeting.read_line(reader)
                # Reject the connection: an agent may only act for replicas that run on its node.
                if not self._has_preamble(name, line + b"\n"):
                    log.warning("agent %s: rejected the preamble %r of another agent's replica", name, line)
                    raise ConnectionRefusedError(
                        "the first line of the connection does not identify a replica of this agent"
                    )
                inner[1].write(line + b"\n")
            await greeting.forward(streams, inner)
        finally:
            inner[1].transport.abort()


def _refuse(writer: asyncio.StreamWriter, kind: str, why: str = "") -> None:
    """Reject a connection with a reason, and close it."""
    writer.write(greeting.answer(kind, why))
    writer.close()


_ExpectedStream = tuple[Any, "asyncio.Future[Channel[Any, Any]]"]
"""The type of the messages on a stream, and the future with which `expect` waits for the stream."""


class _Agent:
    """The open connections of one agent."""

    def __init__(self) -> None:
        self.connections: set[asyncio.StreamWriter] = set()
        #: The writer of the agent's newest conversation.
        self.control: asyncio.StreamWriter | None = None
        self.turn = asyncio.Lock()

    def abort(self) -> None:
        for writer in tuple(self.connections):
            writer.transport.abort()
