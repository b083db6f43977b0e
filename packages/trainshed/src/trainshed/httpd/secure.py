"""Serves ports with TLS, and optionally also plain HTTP for this machine. Reads the certificate of each port.

The module accepts connections itself. Therefore unfinished TLS handshakes are counted like incomplete
requests, and the first byte of a connection selects its protocol.
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
"""The first byte of a TLS connection. No HTTP request starts with it."""
_UPGRADE_REQUIRED = (
    b"HTTP/1.1 426 Upgrade Required\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"This port speaks TLS. Call it as https://, and trust the service's ca.pem (trainshed env).\n"
)
_log = logging.getLogger(__name__)


class TlsListener(Struct, frozen=True):
    """A port with TLS."""

    #: The socket, bound and listening.
    socket: Socket
    certificate: "Certificate"
    #: Whether clients on this machine may speak plain HTTP on the same port.
    plain: bool = False


class SecureServer(Server):
    """uvicorn's server with additional TLS listeners."""

    def __init__(
        self,
        config: Config,
        tls: Sequence[TlsListener],
        groups: ConnectionGroups,
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        """`ending`: called when the server starts to stop, before it waits for running requests."""
        super().__init__(config)
        self._ending = ending
        self._tls = tls
        self._groups = groups

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.should_exit:
            return
        for listener in self._tls:
            # uvicorn treats the acceptor like its own servers: at shutdown, uvicorn closes the acceptor and
            # waits for it.
            acceptor: Any = Acceptor(listener, self.create_protocol, self._groups.tcp)
            self.servers.append(acceptor)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        await super().shutdown(sockets)

    def create_protocol(self) -> asyncio.Protocol:
        """Return the protocol of a connection that this module has accepted."""
        protocol: Any = self.config.http_protocol_class
        return protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def on_readable() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection.fileno(), on_readable)
    try:
        await ready
    finally:
        loop.remove_reader(connection.fileno())


def _is_local(connection: socket.socket, address: str) -> bool:
    """Whether the client is on this machine: its address is a loopback address, or equals the address that it
    has called."""
    peer = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
        peer = peer.ipv4_mapped
    return peer.is_loopback or address == connection.getsockname()[0]


class Certificate:
    """A server certificate, read again at a handshake if its file has changed. The service therefore uses a
    renewed certificate without a restart.

    At the first start of a service, the certificate is created while the port is already open. Without a
    readable certificate, nothing is raised: clients are rejected, and the log shows the reason.
    """

    def __init__(self, chain: Path, key: Path) -> None:
        self._chain = chain
        self._key = key
        self._loaded: ssl.SSLContext | None = None
        self._mtime = 0

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a listener. The context selects the certificate at each handshake."""
        outer = _new_context()
        outer.sni_callback = self._choose
        return outer

    def _choose(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, outer: ssl.SSLContext
    ) -> int | None:
        try:
            mtime = self._chain.stat().st_mtime_ns
            if self._loaded is None or mtime != self._mtime:
                fresh = _new_context()
                fresh.load_cert_chain(self._chain, self._key)
                self._loaded, self._mtime = fresh, mtime
            connection.context = self._loaded
        except OSError as failure:
            _log.warning("TLS handshake failed: the certificate cannot be read (%s)", failure)
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        return None


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    return context


_RETRY_INTERVAL: Final = 0.1
"""Seconds until the next attempt to accept a connection if no file descriptor is available."""
_STOP_TIMEOUT: Final = 0.5
"""Maximum delay in seconds that connections of unknown protocol add to the server's shutdown."""


class Acceptor:
    """Accepts the connections of one port until it is closed, and detects TLS. It has the methods that
    uvicorn calls on an asyncio server."""

    def __init__(
        self, listener: TlsListener, factory: Callable[[], asyncio.Protocol], counter: Connections
    ) -> None:
        self._listener = listener.socket
        self._accepts_plain = listener.plain
        self._context = listener.certificate.context()
        self._factory = factory
        self._counter = counter
        self._detections = Crew()
        self._retry: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._retry is not None:
                self._retry.cancel()
            asyncio.get_running_loop().remove_reader(self._listener.fileno())

    async def wait_closed(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT):
                await self._detections.wait()
        self._detections.cancel()
        await self._detections.wait()
        self._listener.close()

    def _listen(self) -> None:
        self._retry = None
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # Not an error: the client has already disconnected.
        except OSError as failure:
            # Pause, because no file descriptor is available. Descriptors become available when open
            # connections end.
            _log.warning("a connection could not be accepted: %s", failure)
            loop.remove_reader(self._listener.fileno())
            self._retry = loop.call_later(_RETRY_INTERVAL, self._listen)
            return
        connection.setblocking(False)
        detection = self._detect(connection, str(address[0]))
        self._detections.begin(detection, "detecting the protocol of a connection")

    async def _detect(self, connection: socket.socket, address: str) -> None:
        """Detect the protocol of a client, and create its protocol object."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        half = HalfOpen(task)
        self._counter.add(half)
        try:
            await _readable(connection)
            first = connection.recv(1, socket.MSG_PEEK)
            if first and first[0] == _HANDSHAKE:
                await loop.connect_accepted_socket(
                    self._factory,
                    connection,
                    ssl=self._context,
                    ssl_handshake_timeout=self._counter.limits.head_seconds,
                )
                return
            if first and self._accepts_plain and _is_local(connection, address):
                await loop.connect_accepted_socket(self._factory, connection)
                return
            if first:
                connection.recv(65536)
                with contextlib.suppress(OSError):
                    connection.send(_UPGRADE_REQUIRED)
            connection.close()
        except (OSError, asyncio.CancelledError):
            # Close without a response. The client has disconnected, was too slow, or used another protocol.
            connection.close()
        finally:
            self._counter.remove(half)
