"""Forwards shells in replicas on other machines. Each shell has its own stream between the agent, which runs
the shell, and the service, to which the user is connected."""

import asyncio
import contextlib

import msgspec

from trainshed.core.terminals import Terminal
from trainshed.eventloop.background import joined
from trainshed_cluster.remote.channel import Channel, ChannelClosed

_PIECE = 64 << 10
"""Maximum bytes of a message."""


class Typed(msgspec.Struct, frozen=True, tag=True):
    """Input of the user. `data`: the bytes; b"" = the user closed the input."""

    data: bytes


class Resized(msgspec.Struct, frozen=True, tag=True):
    """The user's terminal has a new size."""

    rows: int
    columns: int


class Shown(msgspec.Struct, frozen=True, tag=True):
    """Output of the shell."""

    data: bytes


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The shell has ended. `status`: the shell's exit status; None = the shell ended because its replica
    ended."""

    status: int | None


class RemoteTerminal:
    """The service's side of a shell: a `core.terminals.Terminal` that sends and receives messages on a
    stream."""

    def __init__(self, stream: Channel[Typed | Resized, Shown | Ended]) -> None:
        self._stream = stream
        self.status: int | None = None
        self._is_over = False

    async def read(self) -> bytes:
        if self._is_over:
            return b""
        with contextlib.suppress(ChannelClosed):
            message = await self._stream.receive()
            if isinstance(message, Shown):
                return message.data
            self.status = message.status
        self._is_over = True
        return b""

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(ChannelClosed):
            for begin in range(0, len(data), _PIECE):
                await self._stream.send(Typed(data[begin : begin + _PIECE]))

    async def end_input(self) -> None:
        with contextlib.suppress(ChannelClosed):
            await self._stream.send(Typed(b""))

    def resize(self, rows: int, columns: int) -> None:
        with contextlib.suppress(ChannelClosed):
            self._stream.post(Resized(rows, columns))

    def close(self) -> None:
        self._stream.close()


async def forward_shell(terminal: Terminal, stream: Channel[Shown | Ended, Typed | Resized]) -> None:
    """Run the agent's side of a shell until the shell ends or its user disconnects."""
    typing = joined(_type(terminal, stream))
    showing = joined(_show(terminal, stream))
    try:
        # If the user closes the input, continue, because the user still reads the output.
        await asyncio.wait({typing, showing}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        terminal.close()
        for task in (typing, showing):
            task.cancel()
        await asyncio.gather(typing, showing, return_exceptions=True)
        stream.close()


async def _type(terminal: Terminal, stream: Channel[Shown | Ended, Typed | Resized]) -> None:
    while True:
        message = await stream.receive()
        if isinstance(message, Resized):
            terminal.resize(message.rows, message.columns)
        elif message.data:
            await terminal.write(message.data)
        else:
            await terminal.end_input()


async def _show(terminal: Terminal, stream: Channel[Shown | Ended, Typed | Resized]) -> None:
    while data := await terminal.read():
        for begin in range(0, len(data), _PIECE):
            await stream.send(Shown(data[begin : begin + _PIECE]))
    await stream.send(Ended(terminal.status))
