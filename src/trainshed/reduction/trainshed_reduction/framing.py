"""A connection as frames: what comes is cut into headers and payloads, and what is to be sent goes as far as
the other side takes it. It never blocks, and serves either side, over plain TCP and over TLS.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
from collections import deque
from typing import Deque, Generator, Optional, Tuple

from trainshed_reduction import wire
from trainshed_reduction.wire import Header

_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError)
_PIECES = 32
"""Headers and payloads that the system is given at once."""
_BATCH = 64 << 10
"""Bytes of a payload that are worth waking up for: a shaped link brings a few segments at a time."""
CLOSED = "the connection was closed by the other side"
_CUBIC, _RENO = b"cubic", b"reno"


def set_options(connection: socket.socket, seconds: float) -> None:
    """Of a lane's TCP connection, on either side: small frames go at once, and the system notices a host that
    has vanished without a word, or that takes nothing for so long. Raises OSError.

    Where the system would use cubic, reno takes its place. How much is under way is limited elsewhere
    (`flow`), so a connection rarely uses its window up. Cubic ends a slow start at the first delay (HyStart)
    and then takes seconds to widen such a window, anew after each pause. Over 20 ms there and back, with
    pauses of a second, sums took three times as long as with reno, and 1.2 times where 1 % of the segments
    are lost.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_NODELAY", 1),
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", int(1000 * seconds)),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
    congestion = getattr(socket, "TCP_CONGESTION", None)
    if congestion is not None:
        used = connection.getsockopt(socket.IPPROTO_TCP, congestion, 16).rstrip(b"\0")
        if used == _CUBIC:
            with contextlib.suppress(
                OSError
            ):  # A system may allow programs what it uses itself alone.
                connection.setsockopt(socket.IPPROTO_TCP, congestion, _RENO)


class FramedSocket:
    """One connected socket that is not blocking; whoever made it closes it. TLS's handshake is gone on with
    here, where it is not over. TLS holds bytes that no selector sees: `has_more` tells."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._tls = connection if isinstance(connection, ssl.SSLSocket) else None
        self.is_secured = self._tls is None or self._tls.version() is not None
        """TLS's handshake is over; before that `frames` goes on with it, whichever way it waits for."""
        self.wants_write = False
        """Go on with `flush` when the system takes more."""
        self.unsent = 0
        """Bytes that wait to be sent."""
        self.got = 0
        """Bytes that the latest `frames` has read."""
        self.is_drained = False
        """That was less than there was room for: another one would find nothing."""
        self._out: Deque[Tuple[memoryview, object]] = deque()
        self._header_bytes = memoryview(bytearray(wire.HEADER.size))
        self._header_rest = self._header_bytes
        self._header: Optional[Header] = None
        self._payload = self._payload_rest = memoryview(b"")
        self._wakes_at = 1
        """Bytes that have to be there before the selector tells of them."""

    def place(self, header: Header) -> memoryview:
        """Where a frame's payload is to go; called before anything is allocated for what the header
        announces. May raise Malformed."""
        raise NotImplementedError

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def is_tls(self) -> bool:
        return self._tls is not None

    @property
    def is_between(self) -> bool:
        """Nothing of a frame is on its way, in or out."""
        untouched = self._header is None and len(self._header_rest) == wire.HEADER.size
        return untouched and not self._out

    @property
    def has_more(self) -> bool:
        """Bytes are here that the selector does not know of."""
        return self._tls is not None and self.is_secured and self._tls.pending() > 0

    def frames(self) -> Generator[Tuple[Header, memoryview], None, None]:
        """The frames that are complete by what one call of the system gives; the next one's header is not
        looked at before this one has been taken. Raises Malformed, OSError (ConnectionResetError: the other
        side has closed it)."""
        self.got = 0
        self.is_drained = True
        try:
            if not self.is_secured and not self._secure():
                return
            if self._header is None:
                self.got = self.socket.recv_into(self._header_rest)
                room = len(self._header_rest)
            elif self._tls is not None:
                self.got = self._tls.recv_into(self._payload_rest)
                room = len(self._payload_rest)
            else:
                # The next header comes along, so that a whole frame costs one call.
                self.got = self.socket.recvmsg_into([self._payload_rest, self._header_rest])[0]
                room = len(self._payload_rest) + len(self._header_rest)
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return
        except _NOT_NOW:
            self._wait_for_more()
            return
        if not self.got:
            raise ConnectionResetError(CLOSED)
        self.is_drained = self._tls is None and self.got < room
        size = min(self.got, len(self._payload_rest))
        self._payload_rest = self._payload_rest[size:]
        self._header_rest = self._header_rest[self.got - size :]
        while self._is_complete():
            header, self._header = self._header, None
            assert header is not None
            yield header, self._payload
        if self.is_drained:
            self._wait_for_more()

    def _is_complete(self) -> bool:
        """Whether all of a frame is here. Raises Malformed."""
        if self._header is None and not self._header_rest:
            header = wire.unpack(self._header_bytes)
            self._payload = self._payload_rest = self.place(header)
            self._header, self._header_rest = header, self._header_bytes
        return self._header is not None and not self._payload_rest

    def _wait_for_more(self) -> None:
        """Have the selector tell when there is so much that it is worth a turn. Never more than what has
        begun to come still lacks: whatever follows may be long in coming."""
        lacks = len(self._header_rest) if self._header is None else len(self._payload_rest)
        wakes_at = min(lacks, _BATCH)
        if self._tls is None and wakes_at != self._wakes_at:
            self._wakes_at = wakes_at
            with contextlib.suppress(OSError):  # A system that cannot do this wakes up more often.
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wakes_at)

    def _secure(self) -> bool:
        """Whether TLS's handshake is over."""
        assert self._tls is not None
        self.wants_write = False
        self._tls.do_handshake()
        self.is_secured = True
        self.flush()
        return True

    def queue(self, piece: "bytes | memoryview", owner: object = None) -> None:
        """To be sent after all that is queued already. `owner`: is kept until then."""
        self._out.append((memoryview(piece), owner))
        self.unsent += len(piece)

    def flush(self) -> int:
        """Send as much as the system takes; how many bytes. Raises OSError."""
        before = self.unsent
        try:
            while self._out and self.is_secured:
                if self._tls is not None:
                    count = self._tls.send(self._out[0][0])
                else:
                    pieces = [piece for piece, _ in itertools.islice(self._out, _PIECES)]
                    count = self.socket.sendmsg(pieces)
                self._sent(count)
        except (ssl.SSLWantWriteError, *_NOT_NOW):
            pass
        if self.is_secured:
            self.wants_write = bool(self._out)
        return before - self.unsent

    def _sent(self, count: int) -> None:
        self.unsent -= count
        while self._out and count >= len(self._out[0][0]):
            count -= len(self._out.popleft()[0])
        if count:
            piece, owner = self._out[0]
            self._out[0] = (piece[count:], owner)

    def forget(self) -> None:
        """Nothing more is sent."""
        self._out.clear()
        self.unsent = 0

    def discard(self) -> bool:
        """Read and throw away; whether the other side may still send. Raises OSError."""
        try:
            return bool(self.socket.recv(64 << 10))
        except (ssl.SSLWantWriteError, *_NOT_NOW):
            return True
