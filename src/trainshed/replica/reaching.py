"""Reaches a Unix socket at a path of any length: the kernel takes about a hundred bytes, data directories nest deeper.

Runs on Python 3.6.
"""

import os
import socket

from trainshed.replica import system

_KERNEL_LIMIT = 100


def connected(path: str, preamble: bytes = b"") -> "socket.socket | None":
    """A connection on which `preamble`, which is short, has been said; None: not now (nobody listens there, or there is
    no handle left)."""
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        _connect(connection, path)
        # Nothing is in the way of so little: it does not wait for anybody to read.
        connection.sendall(preamble)
    except OSError:
        connection.close()
        return None
    return connection


def _connect(connection: socket.socket, path: str) -> None:
    if len(os.fsencode(path)) <= _KERNEL_LIMIT or not system.LINUX:
        connection.connect(path)
        return
    directory, name = os.path.split(path)
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        connection.connect("/proc/self/fd/%d/%s" % (handle, name))
    finally:
        os.close(handle)
