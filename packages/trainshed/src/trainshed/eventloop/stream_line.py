"""One connection that is read and written in pieces."""

import asyncio
import contextlib
from typing import Final

_READ: Final = 1 << 16


class StreamLine:
    """A connection that is read and written in pieces, and never fails: its end is an empty piece."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        try:
            return await self._reader.read(_READ)
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        # `read` reports the end; uvloop raises either.
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(data)
            await self._writer.drain()

    async def end_input(self) -> None:
        """Say that nothing more will be written."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()
