"""A connection for reading and writing in pieces."""

import asyncio
import contextlib
from typing import Final

_READ: Final = 1 << 16


class StreamLine:
    """A connection that reports its end as an empty piece instead of an error."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        try:
            return await self._reader.read(_READ)
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        # `read` reports the end. uvloop raises either exception.
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(data)
            await self._writer.drain()

    async def end_input(self) -> None:
        """Signal that nothing more will be written."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()
