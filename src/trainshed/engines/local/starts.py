"""Limits how many replicas start at once, so that the start of a large gang leaves the service its share of
the processors."""

import asyncio
import os
from typing import Final

from trainshed.core.names import JobUid, ReplicaId

Key = tuple[JobUid, int, ReplicaId]
"""A replica of an attempt."""

_PER_PROCESSOR: Final = 4
"""Starts under way per processor. A start waits for the disk now and then; with fewer a processor would be
idle."""
_LONGEST: Final = 0.25
"""Seconds after which a start does not count any more: it pulls an image, say, or waits for a disk."""


class StartLimit:
    """Every replica that is about to start passes `enter`; `leave` is called when it has started or ended."""

    def __init__(self, most: int = 0) -> None:
        self._free = asyncio.Semaphore(most or _PER_PROCESSOR * (os.cpu_count() or 1))
        self._under_way: dict[Key, asyncio.TimerHandle] = {}

    async def enter(self, key: Key) -> None:
        """Wait until it may start."""
        await self._free.acquire()
        self.leave(key)
        loop = asyncio.get_running_loop()
        self._under_way[key] = loop.call_later(_LONGEST, self.leave, key)

    def leave(self, key: Key) -> None:
        """Nothing if it did not enter, or has left."""
        if (timer := self._under_way.pop(key, None)) is not None:
            timer.cancel()
            self._free.release()
