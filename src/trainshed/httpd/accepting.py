"""Accepts the connections of a listening socket by hand, for servers that must know of a connection from the
moment it is accepted: to count those that are not served yet, and to stop accepting at one exact moment."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

from trainshed.eventloop.background import Crew

Greet = Callable[[socket.socket, str], Coroutine[Any, Any, None]]
"""Takes a new connection and the caller's address ("" on a Unix socket), and serves or closes it."""

_NO_FILES_SECONDS: Final = 0.1
_log = logging.getLogger(__name__)


class Acceptor:
    """Accepts connections until it is closed. It has the methods that uvicorn expects of an asyncio
    server."""

    def __init__(self, listener: socket.socket, greet: Greet, what: str) -> None:
        """`what` names the handling of a connection in the log."""
        self._listener = listener
        self._greet = greet
        self._what = what
        self._greeting = Crew()
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False
        #: When the last connection was taken (seconds of the event loop).
        self.last = asyncio.get_running_loop().time()
        listener.setblocking(False)
        self._begin()

    @property
    def is_greeting(self) -> bool:
        """Whether some accepted connections are not served yet."""
        return self._greeting.is_busy

    def stop(self) -> None:
        """Accept no more connections. Other holders of the socket still can."""
        if not self._is_closed:
            self._is_closed = True
            if self._pause is not None:
                self._pause.cancel()
            asyncio.get_running_loop().remove_reader(self._listener.fileno())

    def close(self) -> None:
        """Accept no more connections, and cancel the handling of those that are not served yet."""
        self.stop()
        self._greeting.cancel()

    async def wait_closed(self) -> None:
        await self._greeting.settled()
        self._listener.close()

    def _begin(self) -> None:
        self._pause = None
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._come)

    def _come(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # The caller has gone already.
        except OSError as failure:
            # No file descriptor is left for it; when an open connection ends there is one.
            _log.warning("a connection could not be taken: %s", failure)
            loop.remove_reader(self._listener.fileno())
            self._pause = loop.call_later(_NO_FILES_SECONDS, self._begin)
            return
        self.last = loop.time()
        connection.setblocking(False)
        is_tcp = connection.family != socket.AF_UNIX
        if is_tcp:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._greeting.begin(self._greet(connection, str(address[0]) if is_tcp else ""), self._what)
