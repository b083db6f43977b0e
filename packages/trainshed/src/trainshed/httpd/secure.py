"""Serves ports that speak TLS, alone or beside plain HTTP for this machine, and reads their certificate.

It accepts connections itself (`httpd.secure`), so that connections that do not finish their handshake are
counted like any other half request, and so that the first byte shows what a client speaks.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from socket import socket as Socket  # noqa: N812 beside a field of that name
from typing import Any, Final

from msgspec import Struct
from uvicorn.config import Config
from uvicorn.server import Server

from trainshed.eventloop.background import Crew
from trainshed.httpd.connections import Connections, HalfOpen
from trainshed.httpd.protocol import ConnectionGroups

_HANDSHAKE = 0x16
"""The first byte of a TLS connection; no HTTP request begins with it."""
_PLAIN = (
    b"HTTP/1.1 426 Upgrade Required\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"This port speaks TLS. Call it as https://, and trust the service's ca.pem (trainshed env).\n"
)
_log = logging.getLogger(__name__)


class TlsListener(Struct, frozen=True):
    """A port that speaks TLS."""

    #: The bound and listening socket.
    socket: Socket
    certificate: "Certificate"
    #: Whether clients on this machine may speak plain HTTP on the same port.
    plain: bool = False


class SecureServer(Server):
    """uvicorn's server with additional listeners that speak TLS."""

    def __init__(
        self,
        config: Config,
        tls: Sequence[TlsListener],
        groups: ConnectionGroups,
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        """`ending`: called when the server begins to end, before it waits for requests in progress."""
        super().__init__(config)
        self._ending = ending
        self._tls = tls
        self._groups = groups

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.should_exit:
            return
        for listener in self._tls:
            # uvicorn closes it like its own servers, and waits for that.
            taking: Any = Acceptor(listener, self.made, self._groups.tcp)
            self.servers.append(taking)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        await super().shutdown(sockets)

    def made(self) -> asyncio.Protocol:
        """Returns the protocol for a connection that was accepted by hand."""
        made: Any = self.config.http_protocol_class
        return made(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def come() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection.fileno(), come)
    try:
        await ready
    finally:
        loop.remove_reader(connection.fileno())


def _is_here(connection: socket.socket, address: str) -> bool:
    """Whether the peer is on this machine: its address is on the loopback, or is the very address that it
    called."""
    peer = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
        peer = peer.ipv4_mapped
    return peer.is_loopback or address == connection.getsockname()[0]


class Certificate:
    """The certificate that clients are shown. It is read when a client comes, and again when its file has
    changed: at a service's first start it is made in the meantime, and a renewed one is used without a
    restart.

    It raises nothing: without a readable certificate clients are turned away, and the log says why.
    """

    def __init__(self, chain: Path, key: Path) -> None:
        self._chain = chain
        self._key = key
        self._loaded: ssl.SSLContext | None = None
        self._made = 0

    def context(self) -> ssl.SSLContext:
        """Returns the TLS context of a listener, which chooses the certificate at each handshake."""
        outer = _new_context()
        outer.sni_callback = self._choose
        return outer

    def _choose(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, outer: ssl.SSLContext
    ) -> int | None:
        try:
            made = self._chain.stat().st_mtime_ns
            if self._loaded is None or made != self._made:
                fresh = _new_context()
                fresh.load_cert_chain(self._chain, self._key)
                self._loaded, self._made = fresh, made
            connection.context = self._loaded
        except OSError as failure:
            _log.warning("no certificate for a client that speaks TLS: %s", failure)
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        return None


def _new_context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.set_alpn_protocols(["http/1.1"])
    return made


_NO_FILES_SECONDS: Final = 0.1
_GREETING_SECONDS: Final = 0.5
"""How long connections that are not served yet may delay the server's stop."""


class Acceptor:
    """Accepts the connections of one port until it is closed, and detects TLS on them. It has the methods
    that uvicorn expects of an asyncio server."""

    def __init__(
        self, listener: TlsListener, made: Callable[[], asyncio.Protocol], counted: Connections
    ) -> None:
        self._listener = listener.socket
        self._takes_plain = listener.plain
        self._context = listener.certificate.context()
        self._made = made
        self._counted = counted
        self._greeting = Crew()
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._listener.setblocking(False)
        self._begin()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._pause is not None:
                self._pause.cancel()
            asyncio.get_running_loop().remove_reader(self._listener.fileno())

    async def wait_closed(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GREETING_SECONDS):
                await self._greeting.settled()
        self._greeting.cancel()
        await self._greeting.settled()
        self._listener.close()

    def _begin(self) -> None:
        self._pause = None
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._come)

    def _come(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # The caller has gone already.
        except OSError as failure:
            # No file descriptor is left for it; when an open connection ends there is one.
            _log.warning("a connection could not be taken: %s", failure)
            loop.remove_reader(self._listener.fileno())
            self._pause = loop.call_later(_NO_FILES_SECONDS, self._begin)
            return
        connection.setblocking(False)
        greeting = self._greet(connection, str(address[0]))
        self._greeting.begin(greeting, "finding out what a connection speaks")

    async def _greet(self, connection: socket.socket, address: str) -> None:
        """Find out what a client speaks, and hand the connection on to the right protocol."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        half = HalfOpen(task)
        self._counted.open(half)
        try:
            await _readable(connection)
            first = connection.recv(1, socket.MSG_PEEK)
            if first and first[0] == _HANDSHAKE:
                await loop.connect_accepted_socket(
                    self._made,
                    connection,
                    ssl=self._context,
                    ssl_handshake_timeout=self._counted.limits.head_seconds,
                )
                return
            if first and self._takes_plain and _is_here(connection, address):
                await loop.connect_accepted_socket(self._made, connection)
                return
            if first:
                connection.recv(65536)
                with contextlib.suppress(OSError):
                    connection.send(_PLAIN)
            connection.close()
        except (OSError, asyncio.CancelledError):
            # The client broke off, took too long, or spoke something else: there is nobody to tell.
            connection.close()
        finally:
            self._counted.closed(half)
