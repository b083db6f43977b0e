"""One connection's bytes: frames out of what comes, and what is to be sent as far as the other side takes it.

Knows nothing of groups, and never blocks. TLS holds bytes that no selector sees: `has_more` tells.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
from collections import deque
from typing import TYPE_CHECKING, Deque, List, Optional, Tuple, Union

from trainshed_reduction import wire
from trainshed_reduction.reducer.buffers import Block, Buffers
from trainshed_reduction.wire import Header, Kind, Malformed

if TYPE_CHECKING:
    from trainshed_reduction.native.reducing import NativeMember

Frame = Tuple[Header, Union[Block, bytes]]
"""The payload of a chunk is a block."""
_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError)
_PIECES = 32
"""Headers and payloads that the system is given at once."""
_BATCH = 64 << 10
"""Bytes of a payload that are worth waking up for: a shaped link brings a few segments at a time."""


class Connection:
    def __init__(self, connection: socket.socket, buffers: Buffers) -> None:
        """`connection`: not blocking; TLS's handshake is done here."""
        self._socket = connection
        self._tls = connection if isinstance(connection, ssl.SSLSocket) else None
        self.is_secured = self._tls is None
        """TLS's handshake is over; before that `read` goes on with it, whichever way it waits for."""
        self._buffers = buffers
        self.hello_only = True
        """Whoever is there has proved nothing yet: no other frame is taken."""
        self.wants_write = False
        """Go on with `flush` when the system takes more."""
        self.native: Optional[NativeMember] = None
        """Who reads and sends in place of this one."""
        self._unsent = 0
        self._out: Deque[Tuple[memoryview, Optional[Block]]] = deque()
        self._header_bytes = memoryview(bytearray(wire.HEADER.size))
        self._header_rest = self._header_bytes
        self._header: Optional[Header] = None
        self._payload: Union[Block, bytearray] = bytearray()
        self._payload_rest = memoryview(b"")
        self._wakes_at = 1
        """Bytes that have to be there before the selector tells of them."""
        self.is_drained = False
        """The latest `read` got less than it had room for: another one would find nothing."""

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        return self._unsent if self.native is None else self.native.unsent

    @property
    def may_be_native(self) -> bool:
        """It is plain TCP, between two frames either way."""
        is_between = self._header is None and len(self._header_rest) == wire.HEADER.size
        return self._tls is None and is_between and not self._out

    def come_back(self) -> None:
        """What the part in C has not sent is to be sent from here; it has read to the end."""
        if self.native is not None:
            rest, self.native = self.native.part(), None
            if rest:
                self.queue(rest)

    @property
    def has_more(self) -> bool:
        """Bytes are here that the selector does not know of."""
        return self._tls is not None and self.is_secured and self._tls.pending() > 0

    def read(self) -> "Tuple[int, List[Frame]]":
        """What one call of the system gives: how many bytes (0: none is there yet), and the frames that are
        complete by them. Raises Malformed, OSError (ConnectionResetError: the other side has closed it)."""
        try:
            if not self.is_secured and not self._secure():
                return 0, []
            if self._header is None:
                count = self._socket.recv_into(self._header_rest)
            elif self._tls is not None:
                count = self._tls.recv_into(self._payload_rest)
            else:
                # The next header comes along, so that a whole frame costs one call.
                count = self._socket.recvmsg_into([self._payload_rest, self._header_rest])[0]
                self.is_drained = count < len(self._payload_rest) + len(self._header_rest)
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return 0, []
        except _NOT_NOW:
            self._wait_for_more()
            return 0, []
        if not count:
            raise ConnectionResetError("closed by the other side")
        frames = self._take(count)
        if self.is_drained:
            self._wait_for_more()
        return count, frames

    def _wait_for_more(self) -> None:
        """Have the selector tell when there is so much that it is worth a turn. Never more than what has
        begun to come still lacks: whatever follows may be long in coming."""
        lacks = len(self._header_rest) if self._header is None else len(self._payload_rest)
        wakes_at = min(lacks, _BATCH)
        if self._tls is None and wakes_at != self._wakes_at:
            self._wakes_at = wakes_at
            with contextlib.suppress(OSError):  # A system that cannot do this wakes up more often.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wakes_at)

    def _secure(self) -> bool:
        """Whether TLS's handshake is over."""
        assert self._tls is not None
        self.wants_write = False
        self._tls.do_handshake()
        self.is_secured = True
        self.flush()
        return True

    def _take(self, count: int) -> "List[Frame]":
        if self._header is None:
            self._header_rest = self._header_rest[count:]
        else:
            size = min(count, len(self._payload_rest))
            self._payload_rest = self._payload_rest[size:]
            self._header_rest = self._header_rest[count - size :]
        frames: List[Frame] = []
        if self._header is None and not self._header_rest:
            self._begin()
        while self._header is not None and not self._payload_rest:
            payload = self._payload
            frames.append(
                (self._header, bytes(payload) if isinstance(payload, bytearray) else payload)
            )
            self._header = None
            self._payload = bytearray()
            if not self._header_rest:
                self._begin()
        return frames

    def _begin(self) -> None:
        """The header is complete. Raises Malformed, before anything is allocated for what it announces."""
        header = wire.unpack(self._header_bytes)
        if self.hello_only and header.kind is not Kind.HELLO:
            raise Malformed("HELLO must come first")
        self._header = header
        self._header_rest = self._header_bytes
        if header.kind in (Kind.DATA, Kind.FINAL):
            self._payload = self._buffers.take(header.nbytes)
            self._payload_rest = self._payload.data
        else:
            self._payload = bytearray(header.nbytes)
            self._payload_rest = memoryview(self._payload)

    def queue(self, frame: bytes, block: Optional[Block] = None) -> None:
        """To be sent after all that is queued already: a frame, or a header and the payload that belongs to
        it."""
        if self.native is not None:
            self.native.tell(frame)
            return
        self._out.append((memoryview(frame), None))
        self._unsent += len(frame)
        if block is not None:
            self._out.append((block.data, block))
            self._unsent += len(block.data)

    def flush(self) -> int:
        """Send as much as the system takes; how many bytes. Raises OSError."""
        before = self._unsent
        try:
            while self._out and self.is_secured:
                if self._tls is not None:
                    count = self._tls.send(self._out[0][0])
                else:
                    pieces = [piece for piece, _ in itertools.islice(self._out, _PIECES)]
                    count = self._socket.sendmsg(pieces)
                self._sent(count)
        except (ssl.SSLWantWriteError, *_NOT_NOW):
            pass
        if self.is_secured:
            self.wants_write = bool(self._out)
        return before - self._unsent

    def _sent(self, count: int) -> None:
        self._unsent -= count
        while count:
            piece, block = self._out[0]
            if count < len(piece):
                self._out[0] = (piece[count:], block)
                return
            count -= len(piece)
            self._out.popleft()

    def discard(self) -> bool:
        """Read and throw away; whether the other side may still send. Raises OSError."""
        try:
            return bool(self._socket.recv(64 << 10))
        except (ssl.SSLWantWriteError, *_NOT_NOW):
            return True

    def end_sending(self) -> None:
        """The other side finds the end behind what was sent. Raises OSError."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.come_back()
        self._out.clear()
        self._socket.close()
