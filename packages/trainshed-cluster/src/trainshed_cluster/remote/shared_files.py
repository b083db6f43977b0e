"""Checks repeatedly whether the file systems that a node shares with the service answer, because a program
that hangs on them cannot report it."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence

from trainshed_cluster.remote.messages import SharedFiles

EVERY = 5.0
"""Seconds between an answer and the next question."""
PATIENCE = 10.0
"""Seconds without an answer after which it is told."""


async def stalls(directories: Sequence[str]) -> AsyncIterator[SharedFiles]:
    """Yield when they stop answering and when they answer again, for ever."""
    while True:
        await asyncio.sleep(EVERY)
        since, answer = time.time_ns(), _asked(directories)
        done, _ = await asyncio.wait([answer], timeout=PATIENCE)
        if not done:
            yield SharedFiles(since)
            await answer
            yield SharedFiles(since, time.time_ns())


def _asked(directories: Sequence[str]) -> "asyncio.Future[None]":
    """Touch the directories in a daemon thread, so that a hanging one neither blocks a pool nor the end of
    the process."""
    loop = asyncio.get_running_loop()
    answer = loop.create_future()

    def answered() -> None:
        if not answer.done():
            answer.set_result(None)

    def ask() -> None:
        for directory in directories:
            _touch(directory)
        with contextlib.suppress(RuntimeError):  # The loop is closed: nothing waits for the answer.
            loop.call_soon_threadsafe(answered)

    threading.Thread(target=ask, daemon=True).start()
    return answer


def _touch(directory: str) -> None:
    """Query a file system's free space, and create an unnamed file, because some servers that answer queries
    accept no writes. A refusal counts as an answer, and nothing is left behind."""
    with contextlib.suppress(OSError):
        os.statvfs(directory)
        os.close(os.open(directory, os.O_WRONLY | os.O_TMPFILE, 0o600))
