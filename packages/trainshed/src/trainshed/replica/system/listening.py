"""Opens listening sockets: Unix sockets at paths of any length, and TCP sockets. Raises the limit of open
files."""

import contextlib
import os
import resource
import socket
from pathlib import Path

from trainshed.replica.system import unix_sockets

_BACKLOG = 1024
_OPEN_FILES = 1 << 16
"""The requested limit of open files. A higher limit would have no use."""


def raise_open_files() -> None:
    """Raise the limit of open files of this process and its programs, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    enough = _OPEN_FILES if hard == unlimited else min(hard, _OPEN_FILES)
    if soft != unlimited and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


def listen_unix(path: Path) -> socket.socket:
    """Return a listening Unix socket at `path`, to which only this user can connect. Replaces a socket that a
    crashed process left. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with unix_sockets.reachable(str(path)) as short:
            listener.bind(short)
            # Set the mode with chmod, because umask applies to all threads. No client can connect before
            # `listen`.
            os.chmod(short, 0o600)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def hold_tcp(host: str, port: int) -> socket.socket:
    """Return a socket that reserves a TCP port, so that another socket can listen on it later. Port 0: the
    kernel chooses a port. Raises OSError. The returned socket does not listen itself, because forked children
    inherit it and would then keep the port in use."""
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
    """Return a listening TCP socket. With port 0 the kernel chooses a port. Raises OSError."""
    is_v6 = ":" in host
    return socket.create_server(
        (host, port),
        family=socket.AF_INET6 if is_v6 else socket.AF_INET,
        backlog=_BACKLOG,
        dualstack_ipv6=is_v6 and socket.has_dualstack_ipv6(),
    )
