"""TLS for code that only knows plain sockets: a thread carries bytes between the TLS connection and one of a
pair of sockets, and the other one is used in place of the connection.

So the part in C reads and sends all frames in the same way, and TLS stays Python's.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import sys
import threading
import time
from typing import Any, Callable, Optional, cast

_ROOM = 512 << 10
"""Most bytes on their way in one direction."""
_LAST_WORDS = 2.0
"""Seconds to send what is left once the user has closed its end, and for the other side to read it: a
connection that is closed with unread input discards what the other side has not read yet."""
_INTERVAL = 2e-4
"""Seconds after which a thread that computes in Python gives up the interpreter lock, from the first tunnel
on: with Python's default of 5 ms, tunnels would stand still for most of the time."""
_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Tunnel(socket.socket):
    """The user's end of a tunnel, which owns the connection: that ends soon after this is closed. The address
    and the options of this socket are the connection's."""

    def __init__(
        self, connection: ssl.SSLSocket, handshake: Optional[Callable[[], object]] = None
    ) -> None:
        """`handshake`: called in the tunnel's thread before anything is carried, while the connection still
        blocks; if it raises OSError, this end reads the end of the connection."""
        sys.setswitchinterval(min(sys.getswitchinterval(), _INTERVAL))
        near, far = socket.socketpair()
        super().__init__(near.family, near.type, near.proto, near.detach())
        self._connection = connection
        self._thread = threading.Thread(
            target=_carry, args=(connection, far, handshake), name="reduction-tls", daemon=True
        )
        self._thread.start()

    def getsockname(self) -> Any:
        return self._connection.getsockname()

    def getsockopt(self, *option: Any) -> Any:
        return cast(Any, self._connection).getsockopt(*option)

    def setsockopt(self, *option: Any) -> None:
        self._connection.setsockopt(*option)

    def end(self) -> None:
        """Close it, and wait until what was sent has gone out, for _LAST_WORDS seconds at most."""
        self.close()
        self._thread.join(_LAST_WORDS)


class _Direction:
    """The bytes that go one way, from a source to a target."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self._source = source
        self._target = target
        #: Nothing more comes from the source.
        self.ended = False
        #: The target was told of the end, or accepts nothing any more; what still comes is thrown away.
        self.is_over = False
        #: Bytes that the target has not taken.
        self.left = memoryview(b"")
        self._room = memoryview(bytearray(_ROOM))

    @property
    def reads(self) -> bool:
        return not self.ended and not self.left

    def move(self) -> bool:
        """Move what can be moved, and return whether anything did. A failure ends only this direction."""
        moved = self.reads and self._read()
        try:
            if self.left and not self.is_over:
                self.left = self.left[self._target.send(self.left) :]
                moved = True
        except _NOT_NOW:
            pass
        except OSError:
            self.is_over = True
        if self.is_over:
            self.left = memoryview(b"")
        elif self.ended and not self.left:
            self.is_over = moved = True
            # SSLSocket's own shutdown would go on without TLS.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._target, socket.SHUT_WR)
        return moved

    def _read(self) -> bool:
        """Read all that is there: TLS gives it in pieces of 16 KiB, too small to wake the reader for each."""
        count = 0
        try:
            while not self.ended and count < _ROOM:
                size = self._source.recv_into(self._room[count:])
                self.ended = not size
                count += size
        except _NOT_NOW:
            pass
        except OSError:
            self.ended = True
        self.left = self._room[:count]
        return self.ended or count > 0


def _carry(
    connection: ssl.SSLSocket, far: socket.socket, handshake: Optional[Callable[[], object]]
) -> None:
    with connection, far, contextlib.suppress(OSError):
        if handshake is not None:
            handshake()
        for side in (connection, far):
            side.setblocking(False)
        # Both directions are in this thread: an OpenSSL connection must not be used by two.
        inward, outward = _Direction(connection, far), _Direction(far, connection)
        until = float("inf")
        while time.monotonic() < until and not (
            inward.ended and inward.is_over and outward.is_over
        ):
            moved = inward.move() | outward.move()
            if not moved and _wait(connection, far, inward, outward):
                # The user has closed its end, not only ended sending. What it has sent still goes out.
                inward.is_over = True
            if inward.is_over:
                until = min(until, time.monotonic() + _LAST_WORDS)


def _wait(
    connection: ssl.SSLSocket, far: socket.socket, inward: _Direction, outward: _Direction
) -> bool:
    """Wait until something can be moved, and return whether the user has closed its end."""
    poll = select.poll()
    for side, source, target in ((connection, inward, outward), (far, outward, inward)):
        events = (select.POLLIN if source.reads else 0) | (select.POLLOUT if target.left else 0)
        # POLLHUP is reported whatever is asked for.
        if events or (side is far and not inward.is_over):
            poll.register(side, events)
    ready = dict(poll.poll(1000 * _LAST_WORDS if inward.is_over else None))
    return bool(ready.get(far.fileno(), 0) & select.POLLHUP)
