"""The service's end of the remote transport: agents call here over TLS, and are let in by name.

One connection of an agent is its conversation with the service; each other one is carried, byte for byte, to
one of the service's Unix sockets, or is a stream that the service expects. Nothing is said to who shows no
certificate of ours.
"""

import asyncio
import contextlib
import errno
import json
import logging
import random
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from trainshed.engines.remote import greeting
from trainshed.engines.remote.channel import SILENCE, Channel
from trainshed.engines.remote.credentials import (
    SERVER_NAME,
    Credential,
    Issuer,
    shown_end,
    shown_name,
)
from trainshed.engines.remote.greeting import FirstLine
from trainshed.engines.remote.tunnel import Tunnel, streams
from trainshed.eventloop.background import Crew
from trainshed.eventloop.joining import End
from trainshed.httpd.connections import Connections, Reason
from trainshed.httpd.limits import Limits
from trainshed.replica.endpoint import interception
from trainshed.replica.system.listening import listen_tcp
from trainshed.replica.system.unix_sockets import reachable

log = logging.getLogger(__name__)

Sent = TypeVar("Sent")
Received = TypeVar("Received")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_LIMITS: Final = Limits(connections=256, opening=64, head_seconds=greeting.SECONDS)
"""Of connections that have not said yet what they want."""
_MOST_OF_AGENT: Final = 1024
"""Connections of one agent."""
_ANYWHERE: Final = ("", "0.0.0.0", "::")
_LASTING_PORTS: Final = (*range(10000, 20000), *range(61000, 65536))
"""Neither replicas that share an address (to 31999) nor Kubernetes' services (to 32767) listen there."""
_LENT_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES: Final = 100
_TAKEN_SECONDS: Final = 5.0
"""For so long a port is asked for again that somebody has."""
_LOOK_AGAIN_SECONDS: Final = 0.05
_NO_FILES_SECONDS: Final = 0.1
_QUIET_SECONDS: Final = 10.0
"""Between two lines of the log about strangers."""


def introductions(identity: str) -> frozenset[bytes]:
    """The lines by which a program may be introduced to the buckets that has this identity
    (`launch.documents`): as its replica's endpoint writes them, byte for byte, so that nobody reads another
    meaning into one."""
    plain = identity.encode()
    secure = interception.preamble(plain).rstrip(b"\n")
    assert json.loads(plain).keys() | {"scheme"} == json.loads(secure).keys()
    return frozenset((plain, secure))


def _lasting_ports() -> list[int]:
    """Those that can be had again later. The kernel lends others to connections while nobody listens there:
    also to an agent that dials just that port again and again, and so reaches itself (RFC 9293 3.5)."""
    try:
        first, last = (int(each) for each in _LENT_PORTS.read_text().split())
    except (OSError, ValueError):
        first, last = 32768, 60999  # Linux' own.
    return [port for port in _LASTING_PORTS if not first <= port <= last]


class Hub(Generic[Sent, Received]):
    """Where agents call. Made and used on one event loop."""

    def __init__(
        self,
        issuer: Issuer,
        *,
        host: str,
        port: int,
        received: Any,
        doors: Mapping[str, Path],
        admits: Callable[[str], bool],
        serve: Callable[[Channel[Sent, Received]], Awaitable[None]],
        introduction: Callable[[str, bytes], bool] | None = None,
        content: Callable[[str, str, asyncio.StreamWriter], Awaitable[None]] | None = None,
        dialled: str = "",
        silence: float = SILENCE,
        limits: Limits = _LIMITS,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`host` and `port`: where it listens; port 0 = any free one. `received`: the type of agents'
        messages. `doors`: the service's Unix sockets.

        `admits`: whether an agent of that name is expected now; asked for each connection. `serve`: does all
        of a conversation, which ends when it returns; of one agent one at a time, and a newer one ends the
        older. `introduction`: whether a program of that agent may introduce itself to the buckets by this
        line; None = none may. `content`: sends an agent the content of that path, or says why not, and closes
        the writer; None = none is sent. `dialled`: the host that agents are told; "" = `host`, or this
        machine's name. `silence`: as for `Channel`. `now`: seconds since the epoch.
        """
        self._issuer = issuer
        self._host = host
        self._port = port
        self._received = received
        self._doors = doors
        self._admits = admits
        self._serve = serve
        self._introduction = introduction
        self._content = content
        self._dialled = dialled or (socket.gethostname() if host in _ANYWHERE else host)
        self._silence = silence
        self._now = now
        self._opening = Connections(limits)
        self._agents: dict[str, _Agent] = {}
        self._context: ssl.SSLContext | None = None
        self._expected: dict[tuple[str, str], asyncio.Future[Streams]] = {}
        self._crew = Crew()
        self._quiet_until = 0.0
        self._listener: socket.socket | None = None

    async def start(self) -> None:
        """Listen. Raises OSError: the port is taken."""
        self._context = self._issuer.server()
        self._listener = await self._listening()
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        self._crew.keep(self._take, "taking connections of agents")

    async def _listening(self) -> socket.socket:
        """Agents of jobs that run dial the same port again after a restart. A process that a killed service
        was about to start may still have it for a moment; nothing tells when it has not."""
        if not self._port:
            lasting = _lasting_ports()
            for port in random.sample(lasting, min(_TRIES, len(lasting))):
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
        """End all connections and listen no more."""
        for name in tuple(self._agents):
            self.drop(name)
        await self._crew.close()
        if self._listener is not None:
            self._listener.close()

    @property
    def port(self) -> int:
        """Where it listens, once it does."""
        return self._port

    def issue(self, name: str, ends: float) -> Credential:
        """What the agent of that name is given, good until `ends` (seconds since the epoch). The hub has
        started. Takes a millisecond."""
        certificate, key = self._issuer.issue(name, ends)
        authority = self._issuer.authority
        return Credential(name, self._dialled, self._port, SERVER_NAME, authority, certificate, key)

    def drop(self, name: str) -> None:
        """End all connections of an agent now. It is not let in again unless `admits` says so."""
        agent = self._agents.get(name)
        if agent is not None:
            agent.cut()
        for key in [key for key in self._expected if key[0] == name]:
            future = self._expected.pop(key)
            if not future.done():
                future.set_exception(ConnectionResetError(f"agent {name}: dropped"))
                future.exception()

    def expect(self, name: str, stream: str) -> "asyncio.Future[Streams]":
        """A stream that the agent of that name will open by `stream`, a name that is used once: expected from
        this call on, so that it can be announced, until it has come or the future is cancelled."""
        key = name, stream
        future: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()
        if key in self._expected:
            raise ValueError(f"stream {stream!r} is expected already")
        self._expected[key] = future

        def over(done: "asyncio.Future[Streams]") -> None:
            if self._expected.get(key) is done:
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
                # No file for it: those that are open make room.
                log.warning("agent: a connection could not be taken: %s", failure)
                await asyncio.sleep(_NO_FILES_SECONDS)
                continue
            self._crew.begin(self._greet(connection, str(address[0])), "a connection of an agent")

    async def _greet(self, connection: socket.socket, address: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        half = _Half(task)
        first = FirstLine()
        self._opening.open(half, address)
        try:
            connection.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: first,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._opening.limits.head_seconds,
            )
            line = (await first.line()).decode(errors="replace")
        except (OSError, asyncio.CancelledError) as failure:
            # It broke off, took too long, or is nobody: there is none to tell.
            self._tell(address, failure)
            first.abort()
            connection.close()
            return
        finally:
            self._opening.closed(half)
        try:
            await self._let_in(first, line)
        except OSError as failure:
            log.info("agent connection from %s has ended: %s", address, failure)
            first.abort()
        except BaseException:
            first.abort()
            raise

    def _tell(self, address: str, failure: BaseException) -> None:
        """Log why somebody was not let in: loudly if it may be an agent, and then not for each of a
        thousand."""
        now = asyncio.get_running_loop().time()
        is_told = isinstance(failure, ssl.SSLCertVerificationError) and now >= self._quiet_until
        if is_told:
            self._quiet_until = now + _QUIET_SECONDS
        level = logging.WARNING if is_told else logging.DEBUG
        log.log(level, "agent connection from %s not let in: %s", address, failure)

    async def _let_in(self, first: FirstLine, line: str) -> None:
        """All of a connection that is somebody's."""
        certificate = first.info("peercert")
        name, left = shown_name(certificate), shown_end(certificate) - self._now()
        if not name or left <= 0 or not self._admits(name):
            first.refuse(greeting.NOT_ADMITTED)
            return
        try:
            door = greeting.wished(line)
        except ValueError as error:
            first.refuse(greeting.CLOSED, str(error))
            return
        greeting.probe(first.info("socket").fileno())
        agent = self._agents.setdefault(name, _Agent())
        if door != greeting.CONTROL and len(agent.connections) >= _MOST_OF_AGENT:
            # A conversation takes the place of an older one.
            first.refuse(greeting.CLOSED, f"this agent has {_MOST_OF_AGENT} connections already")
            return
        agent.connections.add(first)
        # Certificates count for as long as they last, not only when they are shown.
        end = asyncio.get_running_loop().call_later(left, first.abort)
        try:
            if door == greeting.CONTROL:
                await self._converse(name, agent, first)
            else:
                await self._carry(name, first, door)
        finally:
            end.cancel()
            agent.connections.discard(first)
            if not agent.connections and self._agents.get(name) is agent:
                del self._agents[name]

    async def _converse(self, name: str, agent: "_Agent", first: FirstLine) -> None:
        if agent.control is not None:
            agent.control.abort()
        agent.control = first
        async with agent.turn:
            if agent.control is not first:
                first.abort()
                return
            channel: Channel[Sent, Received] = Channel(self._received, name, self._silence)
            first.accept(channel)
            try:
                await self._serve(channel)
            finally:
                channel.close()
                if agent.control is first:
                    agent.control = None
        await channel.closed()
        if isinstance(channel.cause, TimeoutError):
            # The way to the node is cut. Tunnels with bytes on their way would not notice for long.
            agent.cut()

    async def _carry(self, name: str, first: FirstLine, door: str) -> None:
        """A connection to a door, or a stream, until it ends."""
        if door.startswith(greeting.STREAM):
            expected = self._expected.pop((name, door.removeprefix(greeting.STREAM)), None)
            if expected is None or expected.done():
                first.refuse(greeting.CLOSED, "this stream is not expected")
                return
            tunnel, reader, writer = streams()
            first.accept(tunnel)
            expected.set_result((reader, writer))
            await tunnel.closed()
            return
        if door.startswith(greeting.CONTENT) and self._content is not None:
            tunnel, reader, writer = streams()
            first.accept(tunnel)
            await self._content(name, door.removeprefix(greeting.CONTENT), writer)
            await tunnel.closed()
            return
        path = self._doors.get(door)
        if path is None:
            first.refuse(greeting.CLOSED, f"there is no door {door!r}")
            return
        loop = asyncio.get_running_loop()
        inner = End(_not_yet, set())
        try:
            with reachable(str(path)) as short:
                await loop.create_unix_connection(lambda: inner, path=short)
        except OSError as failure:
            first.refuse(greeting.CLOSED, f"nobody answers there now: {failure.strerror}")
            return
        outer = End(inner.join, set())
        try:
            if door == greeting.BUCKETS:
                said = FirstLine()
                tunnel = Tunnel(said)
                first.accept(tunnel)
                await self._introduce(name, said, outer)
            else:
                tunnel = Tunnel(outer)
                first.accept(tunnel)
        except BaseException:
            inner.transport.abort()
            first.abort()
            raise
        await tunnel.closed()

    async def _introduce(self, name: str, said: FirstLine, outer: End) -> None:
        """Have `outer` serve a tunnel once its first line was found to be that of a program of the agent.
        Raises OSError."""
        async with asyncio.timeout(self._opening.limits.head_seconds):
            line = await said.line()
        if self._introduction is None or not self._introduction(name, line):
            log.warning("agent %s: a program introduced itself as none of its own: %r", name, line)
            raise ConnectionRefusedError("no program of this agent introduces itself so")
        said.hand_over(outer, line + b"\n")


def _not_yet(end: End) -> None:
    """The other end comes later."""


class _Agent:
    """What an agent has open."""

    def __init__(self) -> None:
        self.connections: set[FirstLine] = set()
        #: The newest conversation.
        self.control: FirstLine | None = None
        self.turn = asyncio.Lock()

    def cut(self) -> None:
        for connection in tuple(self.connections):
            connection.abort()


class _Half:
    """A connection of which nothing is known yet, as it is counted."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def drop(self, reason: Reason) -> None:
        self._task.cancel()

    def is_held_back(self) -> bool:
        return False
