"""Reads HTTP/1.1 messages from a connection: heads, and bodies whose end is known. It decides nothing about
them.

TensorFlow's client sends contradictory lengths, which servers refuse; they are corrected here.
"""

import socket
import ssl
import time
from collections.abc import Callable, Iterator

CHUNKED = -1
"""Instead of a length: the body says itself where it ends."""
UNTIL_END = -2
"""Instead of a length: the body ends with the connection."""

_LONGEST_HEAD = 128 << 10
_CHUNK = 256 << 10


class NotHttp(Exception):
    """The bytes are no HTTP/1.1 that is understood here."""


class ConnectionCut(Exception):
    """The connection ended within a message."""


class Head:
    """The first line of a message and the lines of its header, without their ends."""

    def __init__(self, first: bytes, fields: list[bytes]) -> None:
        self.first = first
        self.fields = fields

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of the fields with this name, which is in lower case."""
        return [field.partition(b":")[2].strip() for field in self.fields if _name(field) == name]

    def drop(self, *names: bytes) -> None:
        self.fields = [field for field in self.fields if _name(field) not in names]

    def encode(self) -> bytes:
        return b"\r\n".join([self.first, *self.fields, b"", b""])

    def has_option(self, option: bytes) -> bool:
        """Whether the header `Connection` has this option, such as `close`."""
        options = b",".join(self.values(b"connection")).lower()
        return option in [word.strip() for word in options.split(b",")]

    def length(self, without: int) -> int:
        """Return the length of the body, or one of the constants above. `without`: the result if no header
        tells it. Raises NotHttp."""
        if any(b"chunked" in coding.lower() for coding in self.values(b"transfer-encoding")):
            return CHUNKED
        lengths = self.values(b"content-length")
        if not lengths:
            return without
        if not lengths[0].isdigit() or len(set(lengths)) > 1:
            raise NotHttp("its length is no number")
        return int(lengths[0])

    def put_right(self) -> int:
        """Correct a request so that it states its length in one way only, and return that (see `length`).
        Raises NotHttp.

        `Transfer-Encoding: identity` is meaningless, and `Content-Length` beside `chunked` is wrong.
        """
        length = self.length(0)
        self.drop(b"content-length" if length == CHUNKED else b"transfer-encoding")
        return length


class Incoming:
    """Reads messages from a connection. `receive`: returns at most that many bytes, b"" at the end; may raise
    OSError."""

    def __init__(self, receive: Callable[[int], bytes]) -> None:
        self._receive = receive
        self._held = b""

    def head(self) -> Head | None:
        """Return the next head; None = the connection has ended. Raises NotHttp, ConnectionCut, OSError."""
        begun = 0
        while True:
            end = self._held.find(b"\r\n\r\n", begun)
            if end >= 0:
                first, *fields = self._cut(end + 4)[:-4].split(b"\r\n")
                return Head(first, fields)
            if len(self._held) > _LONGEST_HEAD:
                raise NotHttp("no request has a head of that length")
            begun = max(0, len(self._held) - 3)
            data = self._receive(_CHUNK)
            if not data:
                if self._held:
                    raise ConnectionCut
                return None
            self._held += data

    def body(self, length: int) -> Iterator[bytes]:
        """Yield the parts of a body as they come, still encoded. Raises NotHttp, ConnectionCut, OSError."""
        if length == UNTIL_END:
            while self._held or self._more(False):
                yield self._cut(len(self._held))
        elif length == CHUNKED:
            yield from self._chunks()
        else:
            yield from self._exactly(length)

    def _exactly(self, length: int) -> Iterator[bytes]:
        while length:
            if not self._held:
                self._more()
            part = self._cut(min(length, len(self._held)))
            length -= len(part)
            yield part

    def _chunks(self) -> Iterator[bytes]:
        while True:
            line = self._line()
            try:
                size = int(line.partition(b";")[0].strip(), 16)
            except ValueError:
                size = -1
            if size < 0:
                raise NotHttp("a chunk of no size")
            yield line
            if not size:
                break
            yield from self._exactly(size + 2)
        while line.strip():
            line = self._line()
            yield line

    def _line(self) -> bytes:
        while b"\n" not in self._held:
            if len(self._held) > _LONGEST_HEAD:
                raise NotHttp("no line of a body is that long")
            self._more()
        return self._cut(self._held.index(b"\n") + 1)

    def _more(self, needed: bool = True) -> bool:
        data = self._receive(_CHUNK)
        if not data and needed:
            raise ConnectionCut
        self._held += data
        return bool(data)

    def _cut(self, size: int) -> bytes:
        part, self._held = self._held[:size], self._held[size:]
        return part


def _name(field: bytes) -> bytes:
    return field.partition(b":")[0].strip().lower()


_LINGER = 2.0


def hang_up(connection: ssl.SSLSocket) -> None:
    """Close a connection after its last answer. Input is still read for a moment, because a client that
    writes into a closed connection may not read the answer. Blocks for seconds at most."""
    deadline = time.monotonic() + _LINGER
    try:
        connection.settimeout(_LINGER)
        try:
            connection.unwrap()
        except (OSError, ValueError):
            pass  # It went on sending, or was gone before.
        socket.socket.shutdown(connection, socket.SHUT_WR)
        while time.monotonic() < deadline and socket.socket.recv(connection, 1 << 16):
            pass
    except OSError:
        pass  # It is gone.
    finally:
        connection.close()
