"""Messages on a TCP connection: a few kinds, each with a number and a block of float32 values.

Owns the bytes on the wire. Knows nothing of who talks to whom, and why.

A frame is a header (kind, number, length of the body in bytes; big-endian) and a body of float32
values (little-endian). Nothing in it can be executed: there is no pickle here.
"""

import enum
import socket
import struct
from dataclasses import dataclass

import numpy as np

from trainshed_demo.model import Vector

SILENCE_SECONDS = 60.0
"""How long a connected peer may say nothing until it counts as lost."""

_HEADER = struct.Struct("!BII")
_MAX_BODY = 256 * 2**20
_FLOAT = np.dtype("<f4")


class PeerLostError(Exception):
    """A connection broke, fell silent or carried nonsense. Meeting again may cure it."""


class Kind(enum.IntEnum):
    """What a frame is."""

    HELLO = 1
    """Worker to primary: the number is its rank, the body its settings."""
    START = 2
    """Primary to worker: the number is the count of epochs done, the body the state to go on from."""
    SUM = 3
    """Either way: the number counts the sums since START."""
    DONE = 4
    """Primary to worker: there is nothing left to do."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One message."""

    kind: Kind
    number: int
    body: Vector


class Channel:
    """Frames over one connected socket. Every method blocks, and raises `PeerLostError`."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        """Takes the socket over.

        Args:
            connection: A connected stream socket.
            peer: Who is at the other end, for messages.
        """
        self.peer = peer
        self.bytes_moved = 0
        self._socket = connection
        self.allow_silence(SILENCE_SECONDS)
        if connection.family != getattr(socket, "AF_UNIX", None):
            # Many small frames, each waited for: holding them back to fill packets costs 40 ms
            # a piece.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def allow_silence(self, seconds: float) -> None:
        """Sets how long the peer may say nothing until it counts as lost."""
        self._socket.settimeout(seconds)

    def send(self, kind: Kind, number: int = 0, body: Vector | None = None) -> None:
        """Sends one frame."""
        content = b"" if body is None else np.asarray(body, _FLOAT).tobytes()
        try:
            self._socket.sendall(_HEADER.pack(kind, number, len(content)) + content)
        except OSError as error:
            raise PeerLostError(f"lost {self.peer}: {error}") from error
        self.bytes_moved += _HEADER.size + len(content)

    def receive(self) -> Frame:
        """Waits for the next frame."""
        code, number, length = _HEADER.unpack(self._read(_HEADER.size))
        # Judged before the body is read: whoever speaks something else on this port must not make
        # this process wait for, or allocate, four gigabytes.
        if code not in Kind.__members__.values() or length > _MAX_BODY or length % _FLOAT.itemsize:
            raise PeerLostError(f"{self.peer} does not speak this program's protocol")
        body = np.frombuffer(self._read(length), _FLOAT).astype(np.float32)
        return Frame(Kind(code), number, body)

    def expect(self, kind: Kind, number: int | None = None) -> Frame:
        """Waits for the next frame, which must be of this kind and, if given, bear this number."""
        frame = self.receive()
        if frame.kind is not kind or number not in (None, frame.number):
            raise PeerLostError(f"{self.peer} sent {frame.kind.name} {frame.number} out of turn")
        return frame

    def close(self) -> None:
        """Closes the connection. Never fails."""
        self._socket.close()

    def _read(self, length: int) -> bytearray:
        content = bytearray(length)
        view = memoryview(content)
        while view:
            try:
                count = self._socket.recv_into(view)
            except OSError as error:
                raise PeerLostError(f"lost {self.peer}: {error}") from error
            if not count:
                raise PeerLostError(f"lost {self.peer}: it closed the connection")
            view = view[count:]
            self.bytes_moved += count
        return content
