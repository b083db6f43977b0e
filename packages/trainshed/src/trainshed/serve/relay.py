"""Forwards gRPC connections from a listening socket to the Unix socket of the gRPC server. The relay is
needed because gRPC accepts no socket that another process has opened.

The address of the relay's end of the Unix connection contains the caller's address, so that gRPC reports it
as the peer (`api.grpc`).

gRPC cancels calls that arrive while it stops. A closed relay therefore forwards no new calls: a GOAWAY frame
(RFC 9113, 6.8) contains the last forwarded call, and clients send later calls to the next service.
"""

import asyncio
import contextlib
import itertools
import os
import socket
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trainshed.eventloop.background import first_of
from trainshed.replica.system.unix_sockets import reachable

_numbers: Final = itertools.count()
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD: Final = 9
"""Length of the header of a frame: length (3 bytes), type (1), flags (1), stream (4)."""
_READ: Final = 1 << 16
_PREFACE_TIMEOUT: Final = 20.0
"""Maximum seconds for a client to send its first bytes, and to finish the TLS handshake."""


class Relay:
    """Forwards connections until it is closed. `limit`: maximum number of concurrent connections. `tls`: the
    TLS settings for callers, or None without TLS."""

    def __init__(
        self, listener: socket.socket, target: Path, limit: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self._listener, self._target, self._limit, self._tls = listener, target, limit, tls
        self._open: dict[_Calls, asyncio.Task[None] | None] = {}
        self._is_closing = False

    async def start(self) -> None:
        timeout = _PREFACE_TIMEOUT if self._tls is not None else None
        self._server = await asyncio.start_server(
            self._serve, sock=self._listener, ssl=self._tls, ssl_handshake_timeout=timeout
        )

    async def close(self, seconds: float) -> None:
        """Forward no new connections and calls. Wait at most `seconds` for calls in progress."""
        self._is_closing = True
        self._server.close()
        for calls in self._open:
            calls.drain()
        if tasks := [*filter(None, self._open.values())]:
            await asyncio.wait(tasks, timeout=seconds)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        calls = _Calls(writer)
        self._open[calls] = asyncio.current_task()
        if self._is_closing:
            calls.drain()
        # Ignore these errors: the client has disconnected or sends nothing, or the server has closed the
        # connection.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_PREFACE_TIMEOUT):
                preface = await reader.readexactly(len(_PREFACE))
            if preface == _PREFACE and len(self._open) <= self._limit:
                answers, server = await self._connect(writer.get_extra_info("peername"))
                server.write(preface)
                await first_of(
                    _forward_bytes(reader, server, calls.requests),
                    _forward_bytes(answers, writer, calls.answers),
                )
                server.close()
        del self._open[calls]
        writer.close()

    async def _connect(self, caller: tuple[str, int] | None) -> tuple[StreamReader, StreamWriter]:
        """Open a new connection to the gRPC server, and return it. Its local address contains the caller's
        address. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            host = caller[0] if caller else ""
            connection.bind(f"\0trainshed/{os.getpid()}/{next(_numbers)}/{host}/")
            with reachable(str(self._target)) as short:
                await asyncio.get_running_loop().sock_connect(connection, short)
            return await asyncio.open_unix_connection(sock=connection)
        except OSError:
            connection.close()
            raise


async def _forward_bytes(reader: StreamReader, writer: StreamWriter, frames: "_Frames") -> None:
    with contextlib.suppress(OSError):  # The client or the server has closed its connection.
        while data := await reader.read(_READ):
            writer.write(frames.forward(data))
            await writer.drain()


class _Frames:
    """Parses the frames of one direction, in pieces of any size.

    `passes`: returns whether to forward the frames of a stream. `between`: returns bytes to insert after a
    frame.
    """

    def __init__(self, passes: Callable[[int], bool], between: Callable[[], bytes]) -> None:
        self._passes, self._between = passes, between
        self._head, self._left, self._is_passed = b"", 0, False
        #: Whether the last piece ended with a complete frame.
        self.is_between = False

    def forward(self, data: bytes) -> bytes:
        """Return the bytes to forward."""
        parts: list[bytes] = []
        while data:
            if self._left:
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
            else:
                missing = _HEAD - len(self._head)
                self._head, data, part = self._head + data[:missing], data[missing:], b""
                if len(self._head) == _HEAD:
                    part, self._head = self._head, b""
                    self._left = int.from_bytes(part[:3])
                    self._is_passed = self._passes(int.from_bytes(part[5:]) & 0x7FFFFFFF)
            parts.append(part if self._is_passed else b"")
            self.is_between = not self._left and not self._head
            if self.is_between:
                parts.append(self._between())
        return b"".join(parts)


class _Calls:
    """The calls of one connection. `writer`: the connection to the client."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        self._last = 0
        self._is_draining = self._is_away = False
        self.requests = _Frames(self._is_known, bytes)
        self.answers = _Frames(lambda _: True, self._goaway)

    def drain(self) -> None:
        """Forward no new calls."""
        self._is_draining = True
        if self.answers.is_between:
            self._writer.write(self._goaway())

    def _is_known(self, stream: int) -> bool:
        if not self._is_draining:
            self._last = max(self._last, stream)
        return stream <= self._last

    def _goaway(self) -> bytes:
        if not self._is_draining or self._is_away:
            return b""
        self._is_away = True
        return b"\0\0\x08\x07\0\0\0\0\0" + self._last.to_bytes(4) + bytes(4)
