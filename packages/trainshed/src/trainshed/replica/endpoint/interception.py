"""The TLS side of a replica's endpoint serves clients that connect to Google's hosts by name and cannot be
told another address. TLS ends here, with a certificate that the replica's programs trust. HTTP/1.1 requests
are read and answered (`conversation`); HTTP/2, which is gRPC, is passed on to the service byte for byte.

Only a relay process with a certificate imports it.
"""

import select
import socket
import ssl

from trainshed.replica import protocol
from trainshed.replica.endpoint import conversation, google_hosts
from trainshed.replica.system import unix_sockets

_HANDSHAKE_SECONDS = 30.0


class TlsFront:
    """Serves clients over TLS."""

    def __init__(
        self, network: protocol.Network, out: google_hosts.GoogleHosts | None = None
    ) -> None:
        """`out`: the way to the real hosts, None = there is none. If the network's certificate is unusable,
        TLS clients are refused, and the rest of the endpoint still works."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Clients that offer both get HTTP/1.1; gRPC clients only offer HTTP/2.
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
        """Serve an accepted connection, which is ours from here on, to its end."""
        try:
            if self._context is None:
                raise ConnectionError("no certificate")
            connection.settimeout(_HANDSHAKE_SECONDS)
            client = self._context.wrap_socket(connection, server_side=True)
        except OSError:
            connection.close()
            return
        if client.selected_alpn_protocol() == "h2":
            pass_on(client, unix_sockets.reached(self._network.grpc_socket))
            return
        client.settimeout(None)
        conversation.Conversation(client, self._network, self._out).run()


_CHUNK = 64 << 10
"""Bytes read at once: more than a TLS record holds, so that no decrypted bytes stay behind, of which `poll`
would not know."""
_LAST_SECONDS = 5.0
"""How long the last bytes of one side may take to be sent to the other."""


def pass_on(client: ssl.SSLSocket, server: socket.socket | None) -> None:
    """Pass bytes both ways until one side hangs up and the other has got its last bytes; then close both.
    `server`: None = it could not be reached. Blocks, with at most a chunk per direction in memory."""
    try:
        if server is not None:
            _Stream(client, server).run()
    except OSError:
        pass  # One of them is gone, so that there is nobody to tell.
    finally:
        client.close()
        if server is not None:
            server.close()


class _Stream:
    """Two connections, with the bytes that are still to be written to each."""

    def __init__(self, client: ssl.SSLSocket, server: socket.socket) -> None:
        client.setblocking(False)
        server.setblocking(False)
        self._client = client
        self._server = server
        self._inwards = memoryview(b"")
        self._outwards = memoryview(b"")
        self._ended = False

    def run(self) -> None:
        """Pass bytes until both sides are done. Raises OSError."""
        while not self._ended:
            self._wait()
            self._inwards = self._inwards or self._read(self._client)
            self._outwards = self._outwards or self._read(self._server)
            self._inwards = _written(self._server, self._inwards)
            self._outwards = _written(self._client, self._outwards)
        for connection, data in ((self._server, self._inwards), (self._client, self._outwards)):
            connection.settimeout(_LAST_SECONDS)
            connection.sendall(data)

    def _wait(self) -> None:
        """Wait until bytes can be moved. A side is read only when the other has taken its bytes before."""
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


def _written(connection: socket.socket, data: memoryview) -> memoryview:
    """Write as much of `data` as the connection takes now; return the rest. Raises OSError."""
    try:
        return data[connection.send(data) :] if data else data
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return data
