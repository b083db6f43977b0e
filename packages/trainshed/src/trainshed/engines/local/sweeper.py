"""Deletes the directories of replicas and autopsies (kept files of failed replicas) after they were moved
into the trash. A child process deletes them, because large trees take long. Each call of `schedule` starts at
most one sweep."""

import asyncio
import contextlib
import subprocess
from pathlib import Path

from trainshed.eventloop.background import begin, in_turns
from trainshed.replica.system import trees

_SWEEP_DELAY = 5.0
"""Seconds between the first call of `schedule` and the sweep."""
_BATCH_SIZE = 500
"""Maximum number of directories that one process deletes."""


class Sweeper:
    """Empties the directory `trash` some seconds after a request."""

    def __init__(self, trash: Path) -> None:
        self._trash = trash
        self._is_scheduled = False
        self._task: asyncio.Task[None] | None = None

    def schedule(self) -> None:
        """Schedule a sweep. Further calls have no effect until the sweep starts."""
        self._is_scheduled = True
        if self._task is None or self._task.done():
            self._task = begin(self._sweep(), "emptying the trash")

    async def _sweep(self) -> None:
        while self._is_scheduled:
            await asyncio.sleep(_SWEEP_DELAY)
            self._is_scheduled = False
            directories = [str(path) for path in self._trash.iterdir()]
            async for batch in in_turns(directories, _BATCH_SIZE):
                # If no process can be started now, a later sweep tries again.
                with contextlib.suppress(OSError):
                    process = await asyncio.create_subprocess_exec(
                        *trees.deletion_command(batch), stderr=subprocess.DEVNULL
                    )
                    await process.wait()

    async def close(self) -> None:
        """Stop sweeping. The next service deletes the rest of the trash."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
