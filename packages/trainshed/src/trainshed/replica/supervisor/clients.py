"""Serves the connections of services to a shim. A slow service cannot block the shim."""

import contextlib
import os
import socket
from collections.abc import Callable

from trainshed.replica import protocol
from trainshed.replica.system import loop, unix_sockets

_SEND_TIMEOUT = 1.0
_RETRY_INTERVAL = 0.2
"""Seconds before the next accept after a lack of file descriptors or memory."""


def listen() -> socket.socket:
    """Open the socket for services in the replica's directory, which must be the current directory. The
    socket is bound by its file name, because a full path may be too long for a socket address."""
    # The file does not exist during the first run of the replica.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(protocol.SOCKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(protocol.SOCKET)
    # Each request of the console is a connection, and a full queue rejects connections.
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def connect(slot: str) -> socket.socket:
    """Open a connection to the shim of the replica in the directory `slot`. Does not block. Raises OSError if
    no shim listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # A shim that no longer accepts connections must not make its caller wait.
    connection.setblocking(False)
    try:
        unix_sockets.connect(connection, os.path.join(slot, protocol.SOCKET))
    except OSError:
        connection.close()
        raise
    return connection


class Clients:
    """The connections of services to a shim. After `serve`, new connections are accepted. A connection that
    does not accept a message is closed, and its service then reads the replica's files instead."""

    def __init__(self, first: socket.socket) -> None:
        self._connections: dict[socket.socket, protocol.Lines] = {}
        self._greeting = b""
        self._listener: socket.socket | None = None
        self._add(first)

    def serve(
        self,
        events: loop.Loop,
        obey: Callable[[socket.socket, protocol.Message], None],
        greet: Callable[[], None],
    ) -> None:
        """Serve the connections on the loop, and listen for new ones. `obey`: called with each order and its
        connection; `greet`: called after each new connection. Raises OSError."""
        self._events = events
        self._obey = obey
        self._greet = greet
        self._listener = listen()
        self.listen_again()

    def listen_again(self) -> None:
        """Serve the same connections again after a call of `Loop.clear`."""
        if self._listener is not None:
            self._listen()
            for connection in self._connections:
                self._attend(connection)

    def release(self, connection: socket.socket) -> None:
        """Stop serving a connection without closing it. Its new owner closes it."""
        self._events.drop(connection.fileno())
        del self._connections[connection]

    def greet(self, message: protocol.Message) -> None:
        self._greeting = protocol.encode(message)
        self.send(message)

    def send(self, message: protocol.Message) -> None:
        data = protocol.encode(message)
        for connection in self._connections:
            _send(connection, data)

    def answer(self, connection: socket.socket, message: protocol.Message) -> None:
        _send(connection, protocol.encode(message))

    def _add(self, connection: socket.socket) -> None:
        connection.settimeout(_SEND_TIMEOUT)
        self._connections[connection] = protocol.Lines()
        if self._greeting:
            _send(connection, self._greeting)

    def _listen(self) -> None:
        assert self._listener is not None
        self._events.add(self._listener.fileno(), self._accept)

    def _attend(self, connection: socket.socket) -> None:
        self._events.add(connection.fileno(), lambda: self._hear(connection))

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection = self._listener.accept()[0]
        except (BlockingIOError, ConnectionAbortedError):
            return  # The service has already disconnected.
        except OSError:
            # No file descriptor or memory is free. The service waits, and the interval avoids a busy loop.
            self._events.drop(self._listener.fileno())
            self._events.after(_RETRY_INTERVAL, self._listen)
            return
        self._add(connection)
        self._greet()
        self._attend(connection)

    def _hear(self, connection: socket.socket) -> None:
        orders: list[protocol.Message] = []
        try:
            data = connection.recv(4096)
            orders = self._connections[connection].feed(data)
        except (OSError, ValueError):
            data = b""
        if not data:
            self.release(connection)
            connection.close()
        for order in orders:
            self._obey(connection, order)


def _send(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except OSError:
        # A part of the message may have been sent, so end the connection. The event loop then removes it. An
        # error shows that the service has closed the connection already.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
