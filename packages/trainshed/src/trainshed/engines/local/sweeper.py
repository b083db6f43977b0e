"""Empties the trash when no programs start, because deleting files slows down creating them."""

import asyncio
from pathlib import Path

from trainshed.engines.local.spawner import Spawner
from trainshed.engines.port import EngineUnavailable
from trainshed.eventloop.background import begin

_QUIET = 1.0
_LONGEST = 30.0


class Sweeper:
    """Empties a directory a moment after the last call of `later`, or half a minute after the first."""

    def __init__(self, spawner: Spawner, trash: Path) -> None:
        self._spawner = spawner
        self._trash = trash
        self._timer: asyncio.TimerHandle | None = None
        self._latest = 0.0
        self._task: asyncio.Task[None] | None = None

    def later(self) -> None:
        """Note that there is something to delete."""
        if self._timer is None:
            self._latest = asyncio.get_running_loop().time() + _LONGEST
            self._set()
        else:
            self.wait()

    def wait(self) -> None:
        """Postpone deleting, because programs are being started."""
        if self._timer is not None:
            self._timer.cancel()
            self._set()

    def _set(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(min(loop.time() + _QUIET, self._latest), self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._task is not None and not self._task.done():
            self.later()
        else:
            self._task = begin(self._sweep(), "emptying the trash")

    async def _sweep(self) -> None:
        try:
            await self._spawner.sweep(self._trash)
        except EngineUnavailable:
            return  # No zygote can be started: the next start of the service sweeps.

    async def close(self) -> None:
        """Stop; the rest of the trash is deleted after the next start."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
