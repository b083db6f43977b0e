"""Unix sockets at paths of any length: the kernel takes about a hundred bytes, projects nest deeper.

Works through a short alias of the directory and leaves the process's working directory alone.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

_KERNEL_LIMIT = 100
_BACKLOG = 1024


@contextmanager
def reachable(path: Path) -> Generator[str, None, None]:
    """A path of legal length to the same socket, valid inside the ``with``."""
    if len(os.fsencode(path)) <= _KERNEL_LIMIT:
        yield str(path)
    elif sys.platform == "linux":
        fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{fd}/{path.name}"
        finally:
            os.close(fd)
    else:
        with tempfile.TemporaryDirectory(prefix="ts") as short:
            alias = Path(short) / "d"
            alias.symlink_to(path.parent.absolute())
            yield str(alias / path.name)


def listen_unix(path: Path) -> socket.socket:
    """A listening socket at ``path``, open to our own user only; replaces what a crash left."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with reachable(path) as short:
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
