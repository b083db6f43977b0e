"""The TLS side of a replica's endpoint. It serves clients that connect to Google's hosts by name and cannot
use another address. This module decrypts TLS with a certificate that the replica's programs trust.
`conversation` serves HTTP/1.1 requests. HTTP/2, which gRPC uses, is forwarded to the service byte for byte.

Only a relay process with a certificate imports this module.
"""

import select
import socket
import ssl

from trainshed.replica import protocol
from trainshed.replica.endpoint import conversation, google_hosts
from trainshed.replica.system import unix_sockets

_HANDSHAKE_TIMEOUT = 30.0


class TlsFront:
    """Serves clients over TLS."""

    def __init__(self, network: protocol.Network, out: google_hosts.GoogleHosts | None = None) -> None:
        """`out`: connects to the real hosts; None if clients have no access to them. If the network's
        certificate is unusable, TLS clients are rejected, and the rest of the endpoint still works."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A client that offers both protocols gets HTTP/1.1. gRPC clients offer HTTP/2 only.
        made.set_alpn_protocols(["http/1.1"] + ["h2"] * bool(network.grpc_socket))
        self._context: ssl.SSLContext | None = made
        self._network = network
        self._out = out
        assert network.certificate is not None
        try:
            made.load_cert_chain(network.certificate)
        except OSError:
            self._context = None

    def serve(self, connection: socket.socket) -> None:
        """Serve an accepted connection until it ends, then close it."""
        try:
            if self._context is None:
                raise ConnectionError("no certificate")
            connection.settimeout(_HANDSHAKE_TIMEOUT)
            client = self._context.wrap_socket(connection, server_side=True)
        except OSError:
            connection.close()
            return
        if client.selected_alpn_protocol() == "h2":
            forward(client, unix_sockets.connect_with_retries(self._network.grpc_socket))
            return
        client.settimeout(None)
        conversation.Conversation(client, self._network, self._out).run()


_CHUNK = 64 << 10
"""Maximum bytes of one read. The value exceeds the size of a TLS record, so that a read returns all decrypted
bytes. `poll` would not report decrypted bytes that remain in the TLS connection."""
_LAST_TIMEOUT = 5.0
"""Timeout in seconds for forwarding the last bytes of one side to the other side."""


def forward(client: ssl.SSLSocket, server: socket.socket | None) -> None:
    """Forward bytes in both directions until the client or the server hangs up, and forward the last bytes
    that it sent. Then close both connections. Blocks, with at most one chunk per direction in memory.
    `server`: None if the server is unreachable."""
    try:
        if server is not None:
            _Stream(client, server).run()
    except OSError:
        pass  # The client or the server has disconnected, so forwarding ends.
    finally:
        client.close()
        if server is not None:
            server.close()


class _Stream:
    """Two connections between which bytes are forwarded, with the unsent bytes for each."""

    def __init__(self, client: ssl.SSLSocket, server: socket.socket) -> None:
        client.setblocking(False)
        server.setblocking(False)
        self._client = client
        self._server = server
        self._inwards = memoryview(b"")
        self._outwards = memoryview(b"")
        self._ended = False

    def run(self) -> None:
        """Forward bytes until both sides have ended. Raises OSError."""
        while not self._ended:
            self._wait()
            self._inwards = self._inwards or self._read(self._client)
            self._outwards = self._outwards or self._read(self._server)
            self._inwards = _write_available(self._server, self._inwards)
            self._outwards = _write_available(self._client, self._outwards)
        for connection, data in ((self._server, self._inwards), (self._client, self._outwards)):
            connection.settimeout(_LAST_TIMEOUT)
            connection.sendall(data)

    def _wait(self) -> None:
        """Wait until bytes can be forwarded. Data from one side is read only after the other side has
        accepted all earlier data."""
        ready = select.poll()
        for connection, coming, going in (
            (self._client, self._inwards, self._outwards),
            (self._server, self._outwards, self._inwards),
        ):
            events = (0 if coming else select.POLLIN) | (select.POLLOUT if going else 0)
            if events:
                ready.register(connection, events)
        ready.poll()

    def _read(self, connection: socket.socket) -> memoryview:
        try:
            data = connection.recv(_CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return memoryview(b"")
        self._ended = self._ended or not data
        return memoryview(data)


def _write_available(connection: socket.socket, data: memoryview) -> memoryview:
    """Write as much of `data` as the connection accepts now; return the rest. Raises OSError."""
    try:
        return data[connection.send(data) :] if data else data
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return data
