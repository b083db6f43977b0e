"""Opens listening sockets: Unix ones at paths of any length, and TCP; and the room for their connections."""

import contextlib
import os
import resource
import socket
from pathlib import Path

from trainshed.replica.system import unix_sockets

_BACKLOG = 1024
_ENOUGH = 1 << 16
"""Sufficient number of open files; a higher limit is not requested."""


def raise_open_files() -> None:
    """Raise the limit of open files of this process, and of its programs, as far as is allowed and useful."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    enough = _ENOUGH if hard == unlimited else min(hard, _ENOUGH)
    if soft != unlimited and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


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


def hold_tcp(host: str, port: int) -> socket.socket:
    """Return a socket that reserves a TCP port, 0 = any, for another one that will listen. It does not listen
    itself: a child during its fork also has it open, and would keep the port. Raises OSError."""
    is_v6 = ":" in host
    held = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_v6 and socket.has_dualstack_ipv6():
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind((host, port))
    except OSError:
        held.close()
        raise
    return held


def listen_tcp(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket; port 0 lets the kernel choose one. Raises OSError."""
    is_v6 = ":" in host
    return socket.create_server(
        (host, port),
        family=socket.AF_INET6 if is_v6 else socket.AF_INET,
        backlog=_BACKLOG,
        dualstack_ipv6=is_v6 and socket.has_dualstack_ipv6(),
    )
