"""Whether the file systems that a node shares with the service answer: asked again and again by its agent,
since a program that waits for them says nothing of it."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence

from trainshed.engines.remote.messages import SharedFiles

EVERY = 5.0
"""Seconds between an answer and the next question."""
PATIENCE = 10.0
"""Seconds without an answer after which it is told."""


async def stalls(directories: Sequence[str]) -> AsyncIterator[SharedFiles]:
    """Each time that they do not answer, then that they do again. Never ends."""
    while True:
        await asyncio.sleep(EVERY)
        since, answer = time.time_ns(), _asked(directories)
        done, _ = await asyncio.wait([answer], timeout=PATIENCE)
        if not done:
            yield SharedFiles(since)
            await answer
            yield SharedFiles(since, time.time_ns())


def _asked(directories: Sequence[str]) -> "asyncio.Future[None]":
    """By a thread of its own: one that hangs with the files is missed nowhere, and not waited for at the
    end."""
    loop = asyncio.get_running_loop()
    answer = loop.create_future()

    def answered() -> None:
        if not answer.done():
            answer.set_result(None)

    def ask() -> None:
        for directory in directories:
            _touch(directory)
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody wants to know.
            loop.call_soon_threadsafe(answered)

    threading.Thread(target=ask, daemon=True).start()
    return answer


def _touch(directory: str) -> None:
    """Ask a server how full it is, and then for a file without a name: some that still answer questions take
    nothing more. To be refused is an answer as well, and nothing is left."""
    with contextlib.suppress(OSError):
        os.statvfs(directory)
        os.close(os.open(directory, os.O_WRONLY | os.O_TMPFILE, 0o600))
