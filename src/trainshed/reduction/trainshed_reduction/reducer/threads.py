"""The threads of a reducer: one for each processor, which is in C nearly all of the time, and the first,
which only watches.

They end together: workers have a lane to each, so a reducer without one of them is none.
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
from typing import Any, Callable, Optional, Tuple

from trainshed_reduction.native.library import Library
from trainshed_reduction.reducer.counters import Overview
from trainshed_reduction.reducer.server import Server

_BACKLOG = 4096
_END_SECONDS = 5.0
"""For the threads to end."""


def listen(address: Tuple[str, int]) -> socket.socket:
    """Raises OSError."""
    listener = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def serve(
    listener: socket.socket,
    count: int,
    *,
    token: bytes,
    tls: Optional[ssl.SSLContext],
    library: Library,
    overview: Overview,
    write: Callable[[str], None],
) -> int:
    """Until SIGTERM or SIGINT, or until one of `count` threads fails; the exit status. `write`: takes a line
    for a person. Raises OSError."""
    _allow_handles()
    news: queue.SimpleQueue[Tuple[int, str, Any]] = queue.SimpleQueue()

    def tell(number: int, what: str, value: object) -> None:
        news.put((number, what, value))

    def run(number: int, server: Server) -> None:
        try:
            server.run()
        except Exception:
            # Whatever it is: a reducer that serves a part of its lanes would be waited for.
            traceback.print_exc()
            tell(number, "log", f"thread {number} has failed: the reducer ends")
            tell(number, "end", 1)

    servers = [
        Server(
            None if number else listener,
            token,
            library=library,
            outlet=functools.partial(tell, number),
            tls=tls,
        )
        for number in range(count)
    ]
    for server in servers:
        server.all = servers
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda _number, _frame: tell(0, "end", 0))
    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(servers)]
    for thread in threads:
        thread.start()
    host, port = listener.getsockname()[:2]
    said = "listening on {}:{} ({} thread{}){}"
    write(said.format(host, port, count, "" if count == 1 else "s", " with TLS" if tls else ""))
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


def _hear(news: queue.SimpleQueue[Tuple[int, str, Any]], overview: Overview) -> Optional[int]:
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
