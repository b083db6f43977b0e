"""Takes the connections of a listening socket by hand, for whoever has to know of each since it was taken: so
that those which are not served yet are counted, and so that none is taken any more from one moment on."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

from trainshed.eventloop.background import Crew

Greet = Callable[[socket.socket, str], Coroutine[Any, Any, None]]
"""Makes something of a connection, or closes it; told the caller's address, "" on a Unix socket."""

_NO_FILES_SECONDS: Final = 0.1
_log = logging.getLogger(__name__)


class Acceptor:
    """Takes connections until it is closed. What uvicorn needs of a server."""

    def __init__(self, listener: socket.socket, greet: Greet, what: str) -> None:
        """`what`: what is done to a connection, for the log."""
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
        """Whether there are connections of which nothing has been made yet."""
        return self._greeting.is_busy

    def stop(self) -> None:
        """Take none from here on. Others who hold the socket may."""
        if not self._is_closed:
            self._is_closed = True
            if self._pause is not None:
                self._pause.cancel()
            asyncio.get_running_loop().remove_reader(self._listener.fileno())

    def close(self) -> None:
        """Take none from here on, and break off what has been begun."""
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
            return  # He has left again.
        except OSError as failure:
            # No file for it: those that are open make room.
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
