"""Sends lines with file handles over Unix stream sockets, and connects to socket paths of any length.

The kernel accepts paths of about a hundred bytes; paths in data directories may be longer. Runs on Python
3.6.
"""

import contextlib
import os
import socket
import struct
import time
from typing import Generator

_MAX_HANDLES = 16
_HANDLE = struct.Struct("i")


def send(connection: socket.socket, line: bytes, *handles: int) -> None:
    """Send a line, with its newline, and copies of `handles`. Raises OSError if the receiver is dead."""
    sent = connection.sendmsg([line], _with(*handles))
    if sent < len(line):
        connection.sendall(line[sent:])


def send_available(connection: socket.socket, line: bytes, handle: int) -> int:
    """Send as much of a line as the socket's buffer accepts now, with a copy of `handle`; return the number
    of bytes. Raises BlockingIOError if the buffer is full, OSError if the receiver is dead."""
    return connection.sendmsg([line], _with(handle), socket.MSG_DONTWAIT)


def _with(*handles: int) -> "list[tuple[int, int, bytes]]":
    if not handles:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(map(_HANDLE.pack, handles)))]


def receive_available(connection: socket.socket) -> "tuple[bytes, list[int]]":
    """Return the data that has arrived and its handles, which the caller must close. Raises BlockingIOError
    if no data has arrived, OSError for other errors."""
    return receive(connection, socket.MSG_DONTWAIT)


def receive(connection: socket.socket, flags: int = 0) -> "tuple[bytes, list[int]]":
    """Wait for data; return it and its handles, which the caller must close. b"" = the sender has closed the
    connection. Raises OSError."""
    space = socket.CMSG_SPACE(_HANDLE.size * _MAX_HANDLES)
    data, ancillary, _, _ = connection.recvmsg(65536, space, flags | socket.MSG_CMSG_CLOEXEC)
    return data, _handles(ancillary)


def receive_line(connection: socket.socket) -> "tuple[bytes, list[int]]":
    """Wait for a line; return it without its newline, and its handles. The sender must wait for the answer
    before it sends more. b"" = the sender has closed the connection. Raises OSError."""
    line, handles = receive(connection)
    while line and not line.endswith(b"\n"):
        more, more_handles = receive(connection)
        if not more:
            return b"", handles
        line += more
        handles += more_handles
    return line.rstrip(b"\n"), handles


def _handles(ancillary: "list[tuple[int, int, bytes]]") -> "list[int]":
    handles: "list[int]" = []
    for _, kind, content in ancillary:
        if kind == socket.SCM_RIGHTS:
            whole = content[: len(content) - len(content) % _HANDLE.size]
            handles.extend(handle for (handle,) in _HANDLE.iter_unpack(whole))
    return handles


class Receiver:
    """Receives lines with one handle each."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._handles: "list[int]" = []
        #: Data after the last complete line with a handle.
        self._rest = b""

    def receive(self) -> "list[tuple[bytes, int]]":
        """Wait for lines; return each with its handle, which the caller must close. [] = the sender has
        closed the connection."""
        while True:
            data, handles = receive(self._connection)
            self._handles += handles
            if not data:
                return []
            *lines, rest = (self._rest + data).split(b"\n")
            # A handle arrives with the first byte of its line. Handles without a complete line are kept, and
            # so are lines that arrived before their handles.
            count = min(len(lines), len(self._handles))
            handles, self._handles = self._handles[:count], self._handles[count:]
            self._rest = b"\n".join([*lines[count:], rest])
            if count:
                return list(zip(lines, handles))  # noqa: B905 - `strict` is too young


_KERNEL_LIMIT = 100


def try_connect(
    path: str, preamble: bytes = b"", is_blocking: bool = True
) -> "socket.socket | None":
    """Connect to the socket at `path`, send the short `preamble`, and return the connection; None = no
    listener or no free handle. If not `is_blocking`, it also fails while the listener's queue is full."""
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:
        return None
    connection.setblocking(is_blocking)
    try:
        connect(connection, path)
        # The preamble fits into the socket's buffer, so this does not wait for the reader.
        connection.sendall(preamble)
    except OSError:
        connection.close()
        return None
    return connection


_CONNECT_TIMEOUT = 10.0
_RETRY_INTERVAL = 0.05


def connect_with_retries(path: "str | None", preamble: bytes = b"") -> "socket.socket | None":
    """Repeat `try_connect` until it succeeds or the timeout expires; return the connection. None = there was
    no listener, or `path` is None. Blocks."""
    if path is None:
        return None
    deadline = time.monotonic() + _CONNECT_TIMEOUT
    while True:
        connection = try_connect(path, preamble)
        if connection is not None or time.monotonic() >= deadline:
            return connection
        time.sleep(_RETRY_INTERVAL)


def connect(connection: socket.socket, path: str) -> None:
    """Connect to a path of any length. Raises OSError."""
    with reachable(path) as short:
        connection.connect(short)


@contextlib.contextmanager
def reachable(path: str) -> "Generator[str, None, None]":
    """Yield a path to the same socket that is short enough for the kernel. The working directory does not
    change. Raises OSError."""
    if len(os.fsencode(path)) <= _KERNEL_LIMIT:
        yield path
        return
    directory, name = os.path.split(path)
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield "/proc/self/fd/%d/%s" % (handle, name)
    finally:
        os.close(handle)
