"""Limits how much of a server one caller may occupy before it has sent a complete request."""

from __future__ import annotations

import contextlib
import resource

from msgspec import Struct

_MOST_CONNECTIONS = 4096
_MOST_OPENING = 1024
_ENOUGH = 1 << 16
"""File descriptors that suffice; a higher limit is not asked for."""


class Limits(Struct, frozen=True):
    """Limits for the connections of one listener: TCP, or one Unix socket."""

    #: Connections open at once. Beyond that the least busy go first: those with incomplete heads, then idle
    #: ones.
    connections: int = 1024
    #: Connections of one peer address whose heads are incomplete for longer than `settling`.
    opening: int = 256
    #: Bytes of a request line and headers; also of chunk headers and trailers between two pieces of a body.
    head_bytes: int = 64 << 10
    #: Seconds from a head's first byte, or from the start of a connection, until the head is complete.
    head_seconds: float = 20.0
    #: Seconds for which a crowd of new connections is left alone, since replicas start together.
    settling: float = 1.0
    #: Bytes of an unfinished body that must come within `body_seconds` while the server reads it.
    body_bytes: int = 4 << 10
    body_seconds: float = 20.0
    #: Bytes of a body that are read and dropped when its request is answered already.
    unread_bytes: int = 64 << 20
    #: Seconds for which a caller that has closed its own side, or left, is still answered.
    half_closed_seconds: float = 10.0
    #: Requests of one connection that may wait for the answers to those before them.
    pipelined: int = 32


def raise_open_files() -> None:
    """Raise this process's limit of open files as far as the system allows, up to `_ENOUGH`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = _ENOUGH if hard == unlimited else min(hard, _ENOUGH)
    if soft != unlimited and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than it says.
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def of_this_process() -> Limits:
    """Limits that fit the limit of open files: a quarter of it for the connections of each listener."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    connections = _MOST_CONNECTIONS if unlimited else max(16, min(_MOST_CONNECTIONS, soft // 4))
    return Limits(connections=connections, opening=min(_MOST_OPENING, connections // 2))
