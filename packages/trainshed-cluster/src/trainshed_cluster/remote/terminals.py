"""Carries shells in replicas on other machines, over a stream of their own between the agent, where the shell
runs, and the service, where its user is."""

import asyncio
import contextlib
import struct
from typing import TypeVar

import msgspec

from trainshed.core.terminals import Terminal
from trainshed.eventloop.background import joined
from trainshed_cluster.remote.channel import NO_MESSAGE

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
T = TypeVar("T")

_LENGTH = struct.Struct(">I")
_LONGEST = 1 << 20
"""Bytes of a message; what is typed or shown at once has less."""
_PIECE = 64 << 10


class Typed(msgspec.Struct, frozen=True, tag=True):
    """Input of the user. `data`: b"" = the end of the input."""

    data: bytes


class Resized(msgspec.Struct, frozen=True, tag=True):
    """The user's terminal has a new size."""

    rows: int
    columns: int


class Shown(msgspec.Struct, frozen=True, tag=True):
    """Output of the shell."""

    data: bytes


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The shell has ended. `status`: None = it was ended with its replica."""

    status: int | None


_TO_SHELL = msgspec.msgpack.Decoder(Typed | Resized)
_FROM_SHELL = msgspec.msgpack.Decoder(Shown | Ended)


class RemoteTerminal:
    """The caller's side: `core.terminals.Terminal` over a stream."""

    def __init__(self, streams: Streams) -> None:
        self._reader, self._writer = streams
        self.status: int | None = None
        self._is_over = False

    async def read(self) -> bytes:
        if self._is_over:
            return b""
        message = await _receive(self._reader, _FROM_SHELL)
        if isinstance(message, Shown):
            return message.data
        self._is_over = True
        if message is not None:
            self.status = message.status
        return b""

    async def write(self, data: bytes) -> None:
        for begin in range(0, len(data), _PIECE):
            await _send(self._writer, Typed(data[begin : begin + _PIECE]))

    async def end_input(self) -> None:
        await _send(self._writer, Typed(b""))

    def resize(self, rows: int, columns: int) -> None:
        if not self._writer.is_closing():
            self._writer.write(_framed(Resized(rows, columns)))

    def close(self) -> None:
        self._writer.close()


async def carry(terminal: Terminal, streams: Streams) -> None:
    """Run the agent's side until the shell ends, or its user hangs up."""
    reader, writer = streams
    typing = joined(_type(terminal, reader))
    showing = joined(_show(terminal, writer))
    try:
        # A user who has ended the input, but not the connection, still reads the output.
        await asyncio.wait({typing, showing}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        terminal.close()
        for task in (typing, showing):
            task.cancel()
        await asyncio.gather(typing, showing, return_exceptions=True)
        writer.close()


async def _type(terminal: Terminal, reader: asyncio.StreamReader) -> None:
    while (message := await _receive(reader, _TO_SHELL)) is not None:
        if isinstance(message, Resized):
            terminal.resize(message.rows, message.columns)
        elif message.data:
            await terminal.write(message.data)
        else:
            await terminal.end_input()


async def _show(terminal: Terminal, writer: asyncio.StreamWriter) -> None:
    while data := await terminal.read():
        for begin in range(0, len(data), _PIECE):
            await _send(writer, Shown(data[begin : begin + _PIECE]))
    await _send(writer, Ended(terminal.status))


async def _receive(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """Return the next message; None = the other side is gone, or sends something invalid."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, *NO_MESSAGE):
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length <= _LONGEST:
            return decoder.decode(await reader.readexactly(length))
    return None


async def _send(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    """Send a message; do nothing if the other side is gone."""
    with contextlib.suppress(OSError):
        writer.write(_framed(message))
        await writer.drain()


def _framed(message: msgspec.Struct) -> bytes:
    data = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(data)) + data
