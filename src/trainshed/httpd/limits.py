"""How much of a server one caller may take before it has said anything worth it."""

from __future__ import annotations

import contextlib
import resource

from msgspec import Struct

_MOST_CONNECTIONS = 4096
_MOST_OPENING = 1024
_ENOUGH = 1 << 16
"""Files."""


class Limits(Struct, frozen=True):
    """Limits of the connections that come one way: by TCP, or by one Unix socket."""

    #: Open at once. Beyond that those that have said least go first: incomplete heads, then idle
    #: connections.
    connections: int = 1024
    #: With an incomplete head, of one peer address, for longer than `settling`.
    opening: int = 256
    #: Of a request line and headers; also of chunk headers and trailers between two pieces of a body.
    head_bytes: int = 64 << 10
    #: From the first byte, or from the start of a connection, until a head is complete.
    head_seconds: float = 20.0
    #: Seconds for which a crowd of new connections is left alone: replicas start together.
    settling: float = 1.0
    #: That have to come of an unfinished body within `body_seconds`, as long as the server reads it.
    body_bytes: int = 4 << 10
    body_seconds: float = 20.0
    #: Of a body that are passed over when its request is answered already.
    unread_bytes: int = 64 << 20
    #: For which a caller who has closed his own side, or left, is still answered.
    half_closed_seconds: float = 10.0
    #: Requests that wait on one connection for the answers of those before them.
    pipelined: int = 32


def raise_open_files() -> None:
    """Let this process have as many files open as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = _ENOUGH if hard == unlimited else min(hard, _ENOUGH)
    if soft != unlimited and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than it says.
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def of_this_process() -> Limits:
    """As many connections as the limit of open files has room for: a quarter of it for each way in."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    connections = _MOST_CONNECTIONS if unlimited else max(16, min(_MOST_CONNECTIONS, soft // 4))
    return Limits(connections=connections, opening=min(_MOST_OPENING, connections // 2))
