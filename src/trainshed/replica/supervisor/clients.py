"""The services that listen to a shim: greeted on arrival, told what happens, never waited for for long.

Runs on Python 3.6.
"""

import os

from trainshed.replica import protocol
from trainshed.replica.system import lean_socket as socket
from trainshed.replica.system import loop, unix_sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

_PATIENCE = 1.0
_NO_ROOM_PAUSE = 0.2
"""Seconds until a call is taken again where there were no file handles or no memory for it."""


def listen() -> socket.socket:
    """The socket for services to come, in the slot's directory, where this is called.

    Bound by its short name: whole paths may be too long for one.
    """
    try:
        os.unlink(protocol.SOCKET)
    except FileNotFoundError:
        pass  # The first incarnation of the slot.
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(protocol.SOCKET)
    listener.listen(16)
    listener.setblocking(False)
    return listener


def connect(slot: str) -> socket.socket:
    """A new connection to the shim that serves a slot. Raises OSError: nobody listens there. Does not
    block."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # A shim that accepts nothing any more must not make its caller wait.
    connection.setblocking(False)
    try:
        unix_sockets.connect(connection, os.path.join(slot, protocol.SOCKET))
    except OSError:
        connection.close()
        raise
    return connection


class Clients:
    """Every open connection. One that does not take a message is dropped: its owner then reads the files."""

    __slots__ = ("_connections", "_greeting")

    def __init__(self, first: "socket.socket | None") -> None:
        self._connections: "dict[socket.socket, protocol.Lines]" = {}
        self._greeting = b""
        if first is not None:
            self.add(first)

    def add(self, connection: socket.socket) -> None:
        connection.settimeout(_PATIENCE)
        self._connections[connection] = protocol.Lines()
        if self._greeting:
            self._send_to(connection, self._greeting)

    def remove(self, connection: socket.socket) -> None:
        self._connections.pop(connection, None)
        connection.close()

    def sockets(self) -> "list[socket.socket]":
        return list(self._connections)

    def greet(self, message: "protocol.Message") -> None:
        """Tell everybody, and everybody who connects from now on."""
        self._greeting = protocol.encode(message)
        self.send(message)

    def send(self, message: "protocol.Message") -> None:
        data = protocol.encode(message)
        for connection in list(self._connections):
            self._send_to(connection, data)

    def answer(self, connection: socket.socket, message: "protocol.Message") -> None:
        """Tell one alone."""
        self._send_to(connection, protocol.encode(message))

    def _send_to(self, connection: socket.socket, data: bytes) -> None:
        try:
            connection.sendall(data)
        except OSError:
            # Half a message may be out: end the stream, and let the loop find the end and remove it.
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # It was closed from the other side.

    def receive(self, connection: socket.socket) -> "list[protocol.Message] | None":
        """What a client orders; None if it is gone. Called when the connection is readable."""
        try:
            data = connection.recv(4096)
            return self._connections[connection].feed(data) if data else None
        except (OSError, ValueError):
            return None


class ServiceListener:
    """Takes the calls of services on the loop. `obey`: called with every order and who gave it; `greet`:
    called when somebody new is there."""

    __slots__ = ("_clients", "_events", "_greet", "_listener", "_obey")

    def __init__(
        self,
        clients: Clients,
        events: loop.Loop,
        obey: "Callable[[socket.socket, protocol.Message], None]",
        greet: "Callable[[], None]",
    ) -> None:
        self._clients = clients
        self._events = events
        self._obey = obey
        self._greet = greet
        self._listener: "socket.socket | None" = None

    def open(self) -> None:
        """Listen to who is connected already and to whoever calls. Raises OSError."""
        self._listener = listen()
        self._listen()
        for connection in self._clients.sockets():
            self._attend(connection)

    def listen_again(self) -> None:
        """The loop was cleared: go on all the same."""
        self._listen()
        for connection in self._clients.sockets():
            self._attend(connection)

    def hand_on(self, connection: socket.socket) -> None:
        """Let go of a connection that somebody else serves from here on."""
        self._events.drop(connection.fileno())
        self._clients.remove(connection)

    def _listen(self) -> None:
        if self._listener is not None:
            self._events.add(self._listener.fileno(), self._accept)

    def _attend(self, connection: socket.socket) -> None:
        self._events.add(connection.fileno(), lambda: self._hear(connection))

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection = self._listener.accept()[0]
        except (BlockingIOError, ConnectionAbortedError):
            return  # The caller went away again.
        except OSError:
            # No handle or no memory for it: the caller waits, and we do not turn round and round meanwhile.
            self._events.drop(self._listener.fileno())
            self._events.after(_NO_ROOM_PAUSE, self._listen)
            return
        self._clients.add(connection)
        self._greet()
        self._attend(connection)

    def _hear(self, connection: socket.socket) -> None:
        handle = connection.fileno()
        orders = self._clients.receive(connection)
        if orders is None:
            self._events.drop(handle)
            self._clients.remove(connection)
            return
        for order in orders:
            self._obey(connection, order)
