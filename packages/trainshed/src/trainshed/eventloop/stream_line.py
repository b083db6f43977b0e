"""A connection for reading and writing blocks of bytes."""

import asyncio
import contextlib
from typing import Final

_READ: Final = 1 << 16


class StreamLine:
    """A connection. When it ends, `read` returns an empty block instead of raising an error."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        try:
            return await self._reader.read(_READ)
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        # Ignore these errors, which occur if the connection has ended. `read` reports the end of the
        # connection.
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(data)
            await self._writer.drain()

    async def end_input(self) -> None:
        """Close the writing direction, so that the other side detects the end of the input."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()
