"""Unix stream sockets: lines that travel with one file handle each, and connections to paths of any length.

The kernel takes about a hundred bytes of a path; data directories nest deeper. Runs on Python 3.6.
"""

import os
import struct

from trainshed.replica.system import kernel
from trainshed.replica.system import lean_socket as socket

_MOST_HANDLES = 16
_HANDLE = struct.Struct("i")


def send(connection: socket.socket, line: bytes, handle: int) -> None:
    """Hand over a line, newline included, and a copy of `handle`. Raises OSError: the receiver is dead."""
    sent = connection.sendmsg([line], _with(handle))
    if sent < len(line):
        connection.sendall(line[sent:])


def send_with(connection: socket.socket, line: bytes, handles: "list[int]") -> None:
    """As `send`, with copies of several handles."""
    rights = (
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("%di" % len(handles), *handles))]
        if handles
        else []
    )
    sent = connection.sendmsg([line], rights)
    if sent < len(line):
        connection.sendall(line[sent:])


def send_some(connection: socket.socket, line: bytes, handle: int) -> int:
    """As much of a line as can be handed over now, its first byte with a copy of `handle`; how much that was.
    Raises BlockingIOError: nothing can; OSError: the receiver is dead."""
    return connection.sendmsg([line], _with(handle), socket.MSG_DONTWAIT)


def _with(*handles: int) -> "list[tuple[int, int, bytes]]":
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(map(_HANDLE.pack, handles)))]


def receive_some(connection: socket.socket) -> "tuple[bytes, list[int]]":
    """What can be read now, and the handles that came with it, which are the caller's. Raises
    BlockingIOError: nothing can; OSError."""
    space = socket.CMSG_SPACE(_HANDLE.size * _MOST_HANDLES)
    data, ancillary, _, _ = connection.recvmsg(4096, space, socket.MSG_DONTWAIT)
    handles = _handles(ancillary)
    for handle in handles:
        os.set_inheritable(handle, False)
    return data, handles


def receive_beside(connection: socket.socket) -> "tuple[bytes, list[int]]":
    """As `receive_some`, and waits until there is something; b"" = the sender is gone. Raises OSError."""
    space = socket.CMSG_SPACE(_HANDLE.size * _MOST_HANDLES)
    data, ancillary, _, _ = connection.recvmsg(65536, space)
    handles = _handles(ancillary)
    for handle in handles:
        os.set_inheritable(handle, False)
    return data, handles


def _handles(ancillary: "list[tuple[int, int, bytes]]") -> "list[int]":
    found: "list[int]" = []
    for _, kind, content in ancillary:
        if kind == socket.SCM_RIGHTS:
            whole = content[: len(content) - len(content) % _HANDLE.size]
            found.extend(handle for (handle,) in _HANDLE.iter_unpack(whole))
    return found


class Receiver:
    """The other end. `rest`: what came after the last whole line that had a handle."""

    __slots__ = ("_connection", "_handles", "_received", "rest")

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._handles: "list[int]" = []
        self._received: "list[tuple[bytes, int]]" = []
        self.rest = b""

    def receive(self) -> "list[tuple[bytes, int]]":
        """Wait for lines; each with its handle, which is the caller's from here on. [] = the sender is
        gone."""
        space = socket.CMSG_SPACE(_HANDLE.size * _MOST_HANDLES)
        while True:
            data, ancillary, _, _ = self._connection.recvmsg(65536, space)
            self._handles.extend(_handles(ancillary))
            if not data:
                return []
            *lines, rest = (self.rest + data).split(b"\n")
            # A line's handle comes with its first byte, so handles without a line stay for later. Of a long
            # line the last piece may bring along what was said after it, in lines that have no handle: those
            # stay as well.
            count = min(len(lines), len(self._handles))
            handles, self._handles = self._handles[:count], self._handles[count:]
            self.rest = b"\n".join([*lines[count:], rest])
            if count:
                for handle in handles:
                    os.set_inheritable(handle, False)
                return list(zip(lines, handles))  # noqa: B905 - `strict` is too young

    def receive_one(self) -> "tuple[bytes, int] | None":
        """As `receive`, one line at a time: the last piece of a long one comes with the next. None = the
        sender is gone."""
        if not self._received:
            self._received = self.receive()
        return self._received.pop(0) if self._received else None

    def handles(self) -> "list[int]":
        """Those received whose line is still incomplete."""
        return list(self._handles)


_KERNEL_LIMIT = 100


def connected(path: str, preamble: bytes = b"") -> "socket.socket | None":
    """A connection on which `preamble`, which is short, has been said; None: not now (nobody listens there,
    or there is no handle left)."""
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        connect(connection, path)
        # Nothing is in the way of so little: it does not wait for anybody to read.
        connection.sendall(preamble)
    except OSError:
        connection.close()
        return None
    return connection


def connect(connection: socket.socket, path: str) -> None:
    """Connect to a path of any length. Raises OSError."""
    with reachable(path) as short:
        connection.connect(short)


class reachable:  # noqa: N801 - what `with` is followed by
    """A path of legal length to the same socket, valid inside the `with`. The process's working directory
    stays what it is."""

    __slots__ = ("_handle", "_path", "_short")

    def __init__(self, path: str) -> None:
        self._path = path
        self._handle = -1
        self._short = ""

    def __enter__(self) -> str:
        """Raises OSError."""
        directory, name = os.path.split(self._path)
        if len(os.fsencode(self._path)) <= _KERNEL_LIMIT:
            return self._path
        if kernel.LINUX:
            self._handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            return "/proc/self/fd/%d/%s" % (self._handle, name)
        import tempfile  # Only here: every replica would hold it.

        self._short = tempfile.mkdtemp(prefix="ts")
        alias = os.path.join(self._short, "d")
        os.symlink(os.path.abspath(directory), alias)
        return os.path.join(alias, name)

    def __exit__(self, *_: object) -> None:
        if self._handle >= 0:
            os.close(self._handle)
        if self._short:
            os.unlink(os.path.join(self._short, "d"))
            os.rmdir(self._short)
