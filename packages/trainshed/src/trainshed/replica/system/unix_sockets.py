"""Sends lines with file handles over Unix stream sockets, and connects to socket paths of any length.

The kernel takes about a hundred bytes of a path, and data directories may nest deeper. Runs on Python 3.6.
"""

import contextlib
import os
import socket
import struct
import time
from typing import Generator

_MOST_HANDLES = 16
_HANDLE = struct.Struct("i")


def send(connection: socket.socket, line: bytes, *handles: int) -> None:
    """Send a line, newline included, and copies of `handles`. Raises OSError if the receiver is dead."""
    sent = connection.sendmsg([line], _with(*handles))
    if sent < len(line):
        connection.sendall(line[sent:])


def send_some(connection: socket.socket, line: bytes, handle: int) -> int:
    """Send as much of a line as fits now, its first byte with a copy of `handle`; return the number of bytes
    sent. Raises BlockingIOError if nothing fits, OSError if the receiver is dead."""
    return connection.sendmsg([line], _with(handle), socket.MSG_DONTWAIT)


def _with(*handles: int) -> "list[tuple[int, int, bytes]]":
    if not handles:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(map(_HANDLE.pack, handles)))]


def receive_some(connection: socket.socket) -> "tuple[bytes, list[int]]":
    """Return what can be read now, and the handles that came with it, which the caller has to close. Raises
    BlockingIOError if there is nothing, OSError."""
    return receive_beside(connection, socket.MSG_DONTWAIT)


def receive_beside(connection: socket.socket, flags: int = 0) -> "tuple[bytes, list[int]]":
    """Wait for data, then return it as `receive_some` does; b"" = the sender is gone. Raises OSError."""
    space = socket.CMSG_SPACE(_HANDLE.size * _MOST_HANDLES)
    data, ancillary, _, _ = connection.recvmsg(65536, space, flags | socket.MSG_CMSG_CLOEXEC)
    return data, _handles(ancillary)


def receive_line(connection: socket.socket) -> "tuple[bytes, list[int]]":
    """Wait for a line, after which nothing comes until it is answered; return it without its end, and the
    handles that came with it. b"" = the sender is gone. Raises OSError."""
    line, handles = receive_beside(connection)
    while line and not line.endswith(b"\n"):
        more, beside = receive_beside(connection)
        if not more:
            return b"", handles
        line += more
        handles += beside
    return line.rstrip(b"\n"), handles


def _handles(ancillary: "list[tuple[int, int, bytes]]") -> "list[int]":
    handles: "list[int]" = []
    for _, kind, content in ancillary:
        if kind == socket.SCM_RIGHTS:
            whole = content[: len(content) - len(content) % _HANDLE.size]
            handles.extend(handle for (handle,) in _HANDLE.iter_unpack(whole))
    return handles


class Receiver:
    """The receiving end of lines that have one handle each."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._handles: "list[int]" = []
        #: Data after the last complete line with a handle.
        self._rest = b""

    def receive(self) -> "list[tuple[bytes, int]]":
        """Wait for lines; return them with their handles, which the caller has to close. [] = the sender is
        gone."""
        while True:
            data, handles = receive_beside(self._connection)
            self._handles += handles
            if not data:
                return []
            *lines, rest = (self._rest + data).split(b"\n")
            # A line's handle comes with its first byte, so handles without a line stay for later. With the
            # last piece of a long line may come lines that follow it and have no handle: those stay as well.
            count = min(len(lines), len(self._handles))
            handles, self._handles = self._handles[:count], self._handles[count:]
            self._rest = b"\n".join([*lines[count:], rest])
            if count:
                return list(zip(lines, handles))  # noqa: B905 - `strict` is too young


_KERNEL_LIMIT = 100


def connected(path: str, preamble: bytes = b"", is_blocking: bool = True) -> "socket.socket | None":
    """Return a new connection to the socket at `path`, after sending the short `preamble`; None if that fails
    now (no listener, or no free handle). A connection that is not `is_blocking` also fails if the listener is
    busy with other connections."""
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:
        return None
    connection.setblocking(is_blocking)
    try:
        connect(connection, path)
        # So little fits into the socket's buffer: it waits for no reader.
        connection.sendall(preamble)
    except OSError:
        connection.close()
        return None
    return connection


_AWAY_SECONDS = 10.0
_RETRY_PAUSE = 0.05


def reached(path: "str | None", preamble: bytes = b"") -> "socket.socket | None":
    """Return a connection like `connected`; None = there was no listener until the timeout, or no path.
    Blocks."""
    if path is None:
        return None
    deadline = time.monotonic() + _AWAY_SECONDS
    while True:
        made = connected(path, preamble)
        if made is not None or time.monotonic() >= deadline:
            return made
        time.sleep(_RETRY_PAUSE)


def connect(connection: socket.socket, path: str) -> None:
    """Connect to a path of any length. Raises OSError."""
    with reachable(path) as short:
        connection.connect(short)


@contextlib.contextmanager
def reachable(path: str) -> "Generator[str, None, None]":
    """Yield a short enough path to the same socket. It does not change the working directory. Raises
    OSError."""
    if len(os.fsencode(path)) <= _KERNEL_LIMIT:
        yield path
        return
    directory, name = os.path.split(path)
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield "/proc/self/fd/%d/%s" % (handle, name)
    finally:
        os.close(handle)
