"""The service's part of a shell in a replica. Requests the shell from the replica's shim, and transfers the
shell's input and output on the event loop."""

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable

from trainshed.core.terminals import TerminalRefused, TerminalRequest
from trainshed.engines.local.slot_handle import SlotHandle
from trainshed.eventloop.stream_line import StreamLine
from trainshed.replica import protocol
from trainshed.replica.supervisor.clients import connect
from trainshed.replica.system import unix_sockets

_ORDER_TIMEOUT = 10.0
"""Timeout in seconds for the shim's response to a request for a shell."""
_STATUS_TIMEOUT = 2.0
"""Timeout in seconds for a shell's exit status, after the end of its streams."""
_CHUNK = 1 << 16
_ENDED = "it has just ended"


class LocalTerminal:
    """A `Terminal` (`core.terminals`) over the streams of a shell on this machine."""

    def __init__(
        self,
        connection: socket.socket,
        handle: int,
        *,
        is_terminal: bool,
        greeting: bytes = b"",
        closed: Callable[[], None] | None = None,
    ) -> None:
        #: Connection to the replica's shim, which reports the shell's exit on it.
        self._connection = connection
        #: File descriptor of the other side of the shell's streams.
        self._handle = handle
        self._is_terminal = is_terminal
        #: Text that is returned before the shell's output.
        self._greeting = greeting
        #: Called once, after the terminal is closed.
        self._tell_closed = closed
        self._lines = protocol.Lines()
        self._loop = asyncio.get_running_loop()
        self._status: int | None = None
        self._over = False
        self._closed = False
        self._waiters: set[asyncio.Future[None]] = set()
        os.set_blocking(handle, False)
        connection.setblocking(False)
        self._loop.add_reader(connection.fileno(), self._hear)

    @property
    def status(self) -> int | None:
        return self._status

    async def read(self) -> bytes:
        if self._greeting:
            greeting, self._greeting = self._greeting, b""
            return greeting
        while not self._closed:
            # Check for the shell's exit before the read. If the shell has exited, the read returns its last
            # output, and an empty result is the end.
            over = self._over
            try:
                data = os.read(self._handle, _CHUNK)
            except BlockingIOError:
                # Do not wait for processes that outlive the shell and may still write.
                if over:
                    return b""
                await self._wait(readable=True)
                continue
            except OSError:
                data = b""  # The streams have ended: return an empty result.
            if not data:
                # Wait for the exit status, which arrives shortly before or after the end of the streams.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_STATUS_TIMEOUT):
                        while not (self._over or self._closed):
                            await self._wait()
            return data
        return b""

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not (self._closed or self._over):
            try:
                view = view[os.write(self._handle, view) :]
            except BlockingIOError:
                await self._wait(writable=True)
            except OSError:
                return  # The shell has exited, which `read` reports.

    async def end_input(self) -> None:
        if self._is_terminal:
            await self.write(b"\x04")
        elif not self._closed:
            stream = socket.socket(fileno=os.dup(self._handle))
            with stream, contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_WR)

    def resize(self, rows: int, columns: int) -> None:
        if self._is_terminal and not self._closed:
            size = struct.pack("HHHH", rows, columns, 0, 0)
            with contextlib.suppress(OSError):  # The shell has exited: no resize.
                fcntl.ioctl(self._handle, termios.TIOCSWINSZ, size)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._stop_listening()
        self._loop.remove_reader(self._handle)
        self._loop.remove_writer(self._handle)
        os.close(self._handle)
        self._connection.close()
        self._wake()
        if self._tell_closed is not None:
            self._tell_closed()

    def _hear(self) -> None:
        try:
            data = self._connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for message in self._lines.feed(data):
            if message["e"] == "ended":
                self._status = message["status"]
        if not data or self._status is not None:
            self._stop_listening()
            self._wake()

    def _stop_listening(self) -> None:
        if not self._over:
            self._over = True
            self._loop.remove_reader(self._connection.fileno())

    async def _wait(self, *, readable: bool = False, writable: bool = False) -> None:
        """Wait until the file descriptor is ready, the shell has exited, or the terminal was closed. May
        return early."""
        if self._over and not writable:
            # The shell's children may keep the terminal open forever, so read only available output.
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        if readable:
            self._loop.add_reader(self._handle, self._wake)
        if writable:
            self._loop.add_writer(self._handle, self._wake)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if readable and not self._closed:
                self._loop.remove_reader(self._handle)
            if writable and not self._closed:
                self._loop.remove_writer(self._handle)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class LocalPort(StreamLine):
    """A `Terminal` over a connection to a port."""

    status = 0

    def resize(self, rows: int, columns: int) -> None:
        """Do nothing, because a port has no terminal size."""


def shell_order(request: TerminalRequest) -> protocol.Message:
    """Return the order for a shell or a port, in the shim's `protocol`."""
    if request.port:
        return {"o": "port", "port": int(request.port) if request.port.isdecimal() else request.port}
    return {
        "o": "shell",
        "tty": request.is_terminal,
        "rows": request.rows,
        "cols": request.columns,
        "term": request.term,
        "command": request.command or "",
        "label": request.label,
    }


async def open_in(
    slot_handle: SlotHandle | None, incarnation: int, request: TerminalRequest
) -> LocalTerminal | LocalPort:
    """Open a shell next to the program of one run (incarnation) of a replica, or a connection to a port of
    the program. Raises TerminalRefused if the replica is not running or its shim refuses."""
    if slot_handle is None or not slot_handle.expects(incarnation):
        raise TerminalRefused("the replica has ended")
    try:
        connection = connect(str(slot_handle.directory))
        # A line of this length always fits into the socket's buffer.
        connection.send(protocol.encode(shell_order(request)))
    except OSError:
        raise TerminalRefused("the replica is starting or ending; try again") from None
    handle = await receive_handle(connection)
    if not request.port:
        return LocalTerminal(connection, handle, is_terminal=request.is_terminal)
    connection.close()
    there = socket.socket(fileno=handle)
    return LocalPort(*await asyncio.open_connection(sock=there))


async def receive_handle(connection: socket.socket) -> int:
    """Wait for the shim's response to a request for a shell, and return its file descriptor. If the response
    contains no file descriptor, close the connection and raise TerminalRefused."""
    connection.setblocking(False)
    handles: list[int] = []
    try:
        async with asyncio.timeout(_ORDER_TIMEOUT):
            answer = await _answer(connection, handles)
        if answer["e"] != "shell" or not handles:
            raise TerminalRefused(answer.get("cause") or _ENDED)
        return handles[0]
    except BaseException as failure:
        connection.close()
        for handle in handles:
            os.close(handle)
        if isinstance(failure, TimeoutError):
            raise TerminalRefused("the supervisor (shim) does not respond; try again") from None
        if isinstance(failure, OSError):
            raise TerminalRefused(_ENDED) from None
        raise


async def _answer(connection: socket.socket, handles: list[int]) -> protocol.Message:
    """Return a shim's response to an order for a shell. Add the file descriptors that arrive with it to
    `handles`. Raises OSError if the connection ends first."""
    lines = protocol.Lines()
    while True:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(connection.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(connection.fileno())
        data, beside = unix_sockets.receive_available(connection)
        handles += beside
        if not data:
            raise ConnectionError
        for message in lines.feed(data):
            # A shim starts every new connection with some other messages, which are ignored here.
            if message["e"] in ("shell", "refused", "exited", "lost"):
                return message
