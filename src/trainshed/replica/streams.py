"""A connection over TLS and a plain one, passed on to each other byte for byte. Runs on Python 3.6."""

import select
import socket
import ssl

_CHUNK = 64 << 10
"""More than a record of TLS holds: what is read at once leaves nothing behind that `poll` would not tell of."""
_LAST_SECONDS = 5.0
"""For what one side said last, until the other has taken it."""


def pass_on(client: ssl.SSLSocket, server: "socket.socket | None") -> None:
    """Until one of the two hangs up, and the other has what it said; both are closed then. `server`: None = there is none.
    Blocks, with at most a chunk per direction in memory."""
    try:
        if server is not None:
            _Stream(client, server).run()
    except OSError:
        pass  # One of them is gone, and so is what it was for.
    finally:
        client.close()
        if server is not None:
            server.close()


class _Stream:
    """The two connections, and what of each has still to be written to the other."""

    __slots__ = ("_client", "_ended", "_inwards", "_outwards", "_server")

    def __init__(self, client: ssl.SSLSocket, server: socket.socket) -> None:
        client.setblocking(False)
        server.setblocking(False)
        self._client = client
        self._server = server
        self._inwards = memoryview(b"")
        self._outwards = memoryview(b"")
        self._ended = False

    def run(self) -> None:
        """Raises OSError."""
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
        """Until something may go on: each is read only while the other has taken what came last."""
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
    """What is left of `data` once as much was written as the connection takes now. Raises OSError."""
    try:
        return data[connection.send(data) :] if data else data
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return data
