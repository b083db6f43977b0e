"""Opens listening sockets: Unix ones at paths of any length, and TCP."""

import contextlib
import os
import socket
from pathlib import Path

from trainshed.replica.system import unix_sockets

_BACKLOG = 1024


def listen_unix(path: Path) -> socket.socket:
    """Return a listening socket at `path`, open to our own user only; replaces a socket that a crash left
    there. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with unix_sockets.reachable(str(path)) as short:
            listener.bind(short)
            # Not by a umask, which all threads share. Nobody can connect before it listens.
            os.chmod(short, 0o600)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def listen_tcp(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket; port 0 lets the kernel choose one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
