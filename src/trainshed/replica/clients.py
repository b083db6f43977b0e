"""The services that listen to a shim: greeted on arrival, told what happens, never waited for for long.

Runs on Python 3.6.
"""

import os
import socket

from trainshed.replica import protocol

_PATIENCE = 1.0


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
