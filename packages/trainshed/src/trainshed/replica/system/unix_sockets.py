"""Sends lines with file descriptors over Unix stream sockets, and connects to socket paths of any length.

The kernel accepts paths of about a hundred bytes, but paths in data directories may be longer. Runs on Python
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
    """Send a line, including its newline, and copies of the file descriptors `handles`. Raises OSError if the
    receiver has closed the connection."""
    sent = connection.sendmsg([line], _with(*handles))
    if sent < len(line):
        connection.sendall(line[sent:])


def send_available(connection: socket.socket, line: bytes, handle: int) -> int:
    """Send as much of a line as the socket's buffer accepts now, with a copy of the file descriptor `handle`.
    Return the number of bytes. Raises BlockingIOError if the buffer is full, and OSError if the receiver has
    closed the connection."""
    return connection.sendmsg([line], _with(handle), socket.MSG_DONTWAIT)


def _with(*handles: int) -> "list[tuple[int, int, bytes]]":
    if not handles:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(map(_HANDLE.pack, handles)))]


def receive_available(connection: socket.socket) -> "tuple[bytes, list[int]]":
    """Return the data that has arrived and its file descriptors, which the caller must close. Raises
    BlockingIOError if no data has arrived, OSError for other errors."""
    return receive(connection, socket.MSG_DONTWAIT)


def receive(connection: socket.socket, flags: int = 0) -> "tuple[bytes, list[int]]":
    """Wait for data. Return it and its file descriptors, which the caller must close. Returns b"" if the
    sender has closed the connection. Raises OSError."""
    space = socket.CMSG_SPACE(_HANDLE.size * _MAX_HANDLES)
    data, ancillary, _, _ = connection.recvmsg(65536, space, flags | socket.MSG_CMSG_CLOEXEC)
    return data, _handles(ancillary)


def receive_line(connection: socket.socket) -> "tuple[bytes, list[int]]":
    """Wait for a line. Return it without its newline, and its file descriptors. Returns b"" if the sender has
    closed the connection. Raises OSError. The sender must wait for the response before it sends more."""
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
    """Receives lines that each have one file descriptor."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._handles: "list[int]" = []
        #: Data that was not returned yet, because its line or its file descriptor is missing.
        self._rest = b""

    def receive(self) -> "list[tuple[bytes, int]]":
        """Wait for lines; return each with its file descriptor, which the caller must close. Returns [] if
        the sender has closed the connection."""
        while True:
            data, handles = receive(self._connection)
            self._handles += handles
            if not data:
                return []
            *lines, rest = (self._rest + data).split(b"\n")
            # A file descriptor arrives with the first byte of its line. Keep descriptors without a complete
            # line, and lines that arrived before their descriptors.
            count = min(len(lines), len(self._handles))
            handles, self._handles = self._handles[:count], self._handles[count:]
            self._rest = b"\n".join([*lines[count:], rest])
            if count:
                return list(zip(lines, handles))  # noqa: B905 - `strict` is too young


_KERNEL_LIMIT = 100


def try_connect(path: str, preamble: bytes = b"", is_blocking: bool = True) -> "socket.socket | None":
    """Connect to the socket at `path`, send the short `preamble`, and return the connection. Returns None if
    no process listens, or if no file descriptor is free. If not `is_blocking`, it also returns None while the
    listener's queue is full."""
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:
        return None
    connection.setblocking(is_blocking)
    try:
        connect(connection, path)
        # The preamble fits into the socket's buffer, so this call does not wait for the reader.
        connection.sendall(preamble)
    except OSError:
        connection.close()
        return None
    return connection


_CONNECT_TIMEOUT = 10.0
_RETRY_INTERVAL = 0.05


def connect_with_retries(path: "str | None", preamble: bytes = b"") -> "socket.socket | None":
    """Repeat `try_connect` until it succeeds or the timeout expires; return the connection. Returns None
    after the timeout, or if `path` is None. Blocks."""
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
    """Yield a path to the same socket that is short enough for the kernel, without a change of the working
    directory. Raises OSError."""
    if len(os.fsencode(path)) <= _KERNEL_LIMIT:
        yield path
        return
    directory, name = os.path.split(path)
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield "/proc/self/fd/%d/%s" % (handle, name)
    finally:
        os.close(handle)
