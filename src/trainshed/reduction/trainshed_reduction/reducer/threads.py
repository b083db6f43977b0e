"""The threads of a reducer: one for each processor, which serves a port of its own and is in C nearly all of
the time, and the first, which only watches.

They end together: workers count on all ports that they were told of, so a reducer without one of them is
none.
"""

from __future__ import annotations

import functools
import queue
import resource
import signal
import socket
import ssl
import threading
import time
import traceback
from typing import Any, Callable, List, Optional, Sequence, Tuple

from trainshed_reduction.native.library import Library
from trainshed_reduction.reducer.counters import Overview
from trainshed_reduction.reducer.server import Server

_BACKLOG = 4096
_END_SECONDS = 5.0
"""For the threads to end."""


def listen(address: "Tuple[str, int]", count: int) -> List[socket.socket]:
    """The first at `address`, the others at free ports of the same host. Raises OSError."""
    listeners: List[socket.socket] = []
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        for number in range(count):
            listener = socket.socket(family, socket.SOCK_STREAM)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, 0 if number else port))
            listener.listen(_BACKLOG)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def serve(
    listeners: Sequence[socket.socket],
    *,
    token: bytes,
    tls: Optional[ssl.SSLContext],
    library: Library,
    overview: Overview,
    write: Callable[[str], None],
) -> int:
    """Until SIGTERM or SIGINT, or until a thread fails; the exit status. `write`: takes a line for a person.
    Raises OSError."""
    _allow_handles()
    news: "queue.SimpleQueue[Tuple[int, str, Any]]" = queue.SimpleQueue()
    ports = [each.getsockname()[1] for each in listeners]

    def tell(number: int, what: str, value: object) -> None:
        news.put((number, what, value))

    def run(number: int, server: Server) -> None:
        try:
            server.run()
        except Exception:
            # Whatever it is: a reducer that serves a part of its ports would be waited for.
            traceback.print_exc()
            tell(number, "log", "port {} is served no more: the reducer ends".format(ports[number]))
            tell(number, "end", 1)

    servers = [
        Server(
            listener,
            ports,
            token,
            library=library,
            outlet=functools.partial(tell, number),
            tls=tls,
        )
        for number, listener in enumerate(listeners)
    ]
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda _number, _frame: tell(0, "end", 0))
    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(servers)]
    for thread in threads:
        thread.start()
    places = ["{}:{}".format(*each.getsockname()[:2]) for each in listeners]
    write("listening on {}{}".format(", ".join(places), " with TLS" if tls else ""))
    ended: Optional[int] = None
    while ended is None:
        ended = _hear(news, overview)
    for server in servers:
        server.end()
    deadline = time.monotonic() + _END_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    while not news.empty():
        _hear(news, overview)
    overview.report()
    return ended


def _hear(news: "queue.SimpleQueue[Tuple[int, str, Any]]", overview: Overview) -> Optional[int]:
    """What a thread tells, or that it is time for something; the exit status when all is to end."""
    moment = overview.moment
    patience = None if moment is None else max(0.0, moment - time.monotonic())
    try:
        number, what, value = news.get(timeout=patience)
    except queue.Empty:
        overview.keep_time(time.monotonic())
        return None
    if what == "end":
        assert isinstance(value, int)
        return value
    overview.hear(number, what, value, time.monotonic())
    overview.keep_time(time.monotonic())
    return None


def _allow_handles() -> None:
    """A connection is a handle, and there may be thousands."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
