"""Listening sockets: Unix ones at paths of any length, and TCP."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from trainshed.replica.system.unix_sockets import reachable

_BACKLOG = 1024


def listen_unix(path: Path) -> socket.socket:
    """A listening socket at ``path``, open to our own user only; replaces what a crash left."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with reachable(str(path)) as short:
            listener.bind(short)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 lets the kernel choose one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    with suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
