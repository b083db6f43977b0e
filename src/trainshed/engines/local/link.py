"""The service's end of one shim's socket: it reads messages and sends orders on the event loop, without a
task per shim."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

from trainshed.engines.port import Fault
from trainshed.replica import protocol
from trainshed.replica.supervisor import clients


class Link:
    """A connection to a shim. Calls `heard` for every message and `broken` once when the other end is
    closed."""

    __slots__ = ("_broken", "_heard", "_lines", "_loop", "_socket")

    def __init__(
        self,
        connection: socket.socket,
        heard: Callable[["Link", protocol.Message], None],
        broken: Callable[["Link"], None],
    ) -> None:
        self._socket = connection
        self._heard = heard
        self._broken = broken
        self._lines = protocol.Lines()
        self._loop = asyncio.get_running_loop()
        connection.setblocking(False)
        self._loop.add_reader(connection.fileno(), self._read)

    def _read(self) -> None:
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for message in self._lines.feed(data):
            self._heard(self, message)
        if not data and self._socket.fileno() >= 0:
            self.close()
            self._broken(self)

    def stop(self, grace: int) -> None:
        """Ask for SIGTERM now and SIGKILL after `grace` ns. If nobody listens, the link breaks, which tells
        so."""
        self._order({"o": "stop", "grace": grace})

    def ping(self, number: int) -> None:
        """Ask for a sign of life: the shim's loop answers `pong` at once."""
        self._order({"o": "ping", "n": number})

    def inject(self, fault: Fault) -> None:
        """Have the shim inject a fault into its replica."""
        self._order({"o": "fault", "kind": fault.value})

    def _order(self, message: protocol.Message) -> None:
        # If this does not fit into the socket's buffer, the shim has not read for long and is about to lose
        # its lease.
        with contextlib.suppress(OSError):
            self._socket.send(protocol.encode(message))

    def close(self) -> None:
        """Close the connection; the shim goes on."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()


def connect(slot: Path) -> socket.socket:
    """Return a new connection to the shim that serves a slot, without blocking. Raises OSError if nobody
    listens there."""
    return clients.connect(str(slot))


def call(slot: Path) -> socket.socket | None:
    """Connect as `connect` does; None = nobody listens there, or this process has no file handle left."""
    try:
        return connect(slot)
    except OSError:
        return None
