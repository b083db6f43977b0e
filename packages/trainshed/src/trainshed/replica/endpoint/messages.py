"""Reads HTTP/1.1 messages from a connection: heads, and bodies with a known end. It does not decide how to
respond to them. It corrects contradictory lengths, which TensorFlow's client sends and servers reject."""

import io
import socket
import ssl
import time
from collections.abc import Iterator

CHUNKED = -1
"""Used in place of a length: the body is chunked."""
UNTIL_END = -2
"""Used in place of a length: the end of the connection ends the body."""

_MAX_HEAD = 128 << 10
"""Maximum bytes of a head, and of a line."""
_CHUNK = 256 << 10


class NotHttp(Exception):
    """The bytes are not HTTP/1.1, or are a form of it that this module does not support."""


class ConnectionCut(Exception):
    """The connection ended in the middle of a message."""


class Head:
    """The first line of a message and its header lines, without line ends."""

    def __init__(self, first: bytes, fields: list[bytes]) -> None:
        self.first = first
        self.fields = fields

    def values(self, name: bytes) -> list[bytes]:
        return [field.partition(b":")[2].strip() for field in self.fields if _name(field) == name]

    def drop(self, *names: bytes) -> None:
        self.fields = [field for field in self.fields if _name(field) not in names]

    def encode(self) -> bytes:
        return b"\r\n".join([self.first, *self.fields, b"", b""])

    def closes(self) -> bool:
        options = b",".join(self.values(b"connection")).lower()
        return b"close" in [word.strip() for word in options.split(b",")]

    def length(self, without: int) -> int:
        """Return the length of the body, or `CHUNKED` or `UNTIL_END`. `without`: the result if the message
        has no length header. Raises NotHttp."""
        if any(b"chunked" in coding.lower() for coding in self.values(b"transfer-encoding")):
            return CHUNKED
        lengths = self.values(b"content-length")
        if not lengths:
            return without
        if not lengths[0].isdigit() or len(set(lengths)) > 1:
            raise NotHttp("the length of the body is not a number")
        return int(lengths[0])

    def correct_length(self) -> int:
        """Remove contradictory headers about the request's length, which prevents request smuggling. Return
        the length (see `length`). Raises NotHttp.

        If the body is chunked, `Content-Length` is removed. Otherwise `Transfer-Encoding` is removed: clients
        send the value `identity`, which is meaningless.
        """
        length = self.length(0)
        self.drop(b"content-length" if length == CHUNKED else b"transfer-encoding")
        return length


def read_head(stream: io.BufferedIOBase) -> Head | None:
    """Return the next head, or None at the end of the connection. Raises NotHttp, ConnectionCut, OSError."""
    lines: list[bytes] = []
    size = 0
    while (line := _line(stream, is_first=not lines)).strip():
        lines.append(line.rstrip(b"\r\n"))
        size += len(line)
        if size > _MAX_HEAD:
            raise NotHttp("the head of the request is too long")
    if not line:
        return None
    if not lines:
        raise NotHttp("the client sent an empty line instead of a request")
    return Head(lines[0], lines[1:])


def read_body(stream: io.BufferedIOBase, length: int) -> Iterator[bytes]:
    """Yield the parts of a body as they arrive, not decoded. Raises NotHttp, ConnectionCut, OSError."""
    if length == UNTIL_END:
        while part := stream.read1(_CHUNK):
            yield part
    elif length == CHUNKED:
        line, size = b"", 1
        while size:
            line = _line(stream)
            try:
                size = int(line.partition(b";")[0].strip(), 16)
            except ValueError:
                size = -1
            if size < 0:
                raise NotHttp("a chunk of the body has no valid size")
            yield line
            if size:
                yield from _exactly(stream, size + 2)
        while line.strip():
            line = _line(stream)
            yield line
    else:
        yield from _exactly(stream, length)


def _exactly(stream: io.BufferedIOBase, length: int) -> Iterator[bytes]:
    while length:
        part = stream.read1(min(length, _CHUNK))
        if not part:
            raise ConnectionCut
        length -= len(part)
        yield part


def _line(stream: io.BufferedIOBase, *, is_first: bool = False) -> bytes:
    """Return a line with its line end. If `is_first`, return b"" if the connection ended before the line."""
    line = stream.readline(_MAX_HEAD)
    if len(line) == _MAX_HEAD:
        raise NotHttp("a line of the message is too long")
    if not line.endswith(b"\n") and (line or not is_first):
        raise ConnectionCut
    return line


def _name(field: bytes) -> bytes:
    return field.partition(b":")[0].strip().lower()


_HANG_UP_TIMEOUT = 2.0


def hang_up(connection: ssl.SSLSocket) -> None:
    """Close a connection after its last response. Continues to read input for a moment, because a client that
    writes into a closed connection may not read the response. Blocks for a few seconds at most."""
    deadline = time.monotonic() + _HANG_UP_TIMEOUT
    try:
        connection.settimeout(_HANG_UP_TIMEOUT)
        try:
            connection.unwrap()
        except (OSError, ValueError):
            pass  # Ignored: the client continued to send, or had disconnected before.
        socket.socket.shutdown(connection, socket.SHUT_WR)
        while time.monotonic() < deadline and socket.socket.recv(connection, 1 << 16):
            pass
    except OSError:
        pass  # The client has disconnected, so no more input arrives.
    finally:
        connection.close()
