"""Releases the memory that work has left behind, once there is no more work: the database's pages, and the C
library's free memory."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from trainshed.eventloop.background import keep
from trainshed.serve.children import trim

_EVERY: Final = 10.0
"""Seconds between two checks."""
_QUIET: Final = 0.5
"""Seconds of processor time between two checks up to which a service counts as idle."""
_WORTH: Final = 1.0
"""Seconds of processor time since the last release after which there is something to release."""


class ReleasesMemory(Protocol):
    """A store (`store.port.Store`)."""

    async def release_memory(self) -> None: ...


class IdleMemory:
    """Releases memory whenever the service is idle after work. `used`: returns the seconds of processor time
    that this process has used so far."""

    def __init__(
        self, store: ReleasesMemory, used: Callable[[], float] = time.process_time
    ) -> None:
        self._store = store
        self._used = used
        self._seen = self._released = used()
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to check."""
        self._watching = keep(self._watch, "giving memory back")

    async def close(self) -> None:
        """Stop checking."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            await self.look()

    async def look(self) -> bool:
        """Release memory if there was work, and none since the last check. Return whether it was released.
        Raises Unavailable."""
        used = self._used()
        before, self._seen = self._seen, used
        if used - before > _QUIET or used - self._released < _WORTH:
            return False
        await self._store.release_memory()
        await asyncio.to_thread(trim)
        self._seen = self._released = self._used()
        return True
