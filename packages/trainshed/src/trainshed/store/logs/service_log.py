"""Writes the service's own lines in a job's log: its notices, and the output of building its environments.

Layout and format are those of the replicas' logs (`trainshed.replica.observe.segments`), as if `SERVICE` were
one of the replicas. Lines survive the end of the service, but they are not synced to disk: the next build
prints its output again, and a sync during a build would wait for everything that the build writes.
"""

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from trainshed.core.names import SERVICE_TASK, JobUid
from trainshed.replica.observe.segments import Segments
from trainshed.store.logs.lines import Stream


class ServiceLog:
    """Writes below `root`. `written` is called on the event loop when there is something new to read of a
    job."""

    def __init__(self, root: Path, written: Callable[[JobUid], None]) -> None:
        self._root = root
        self._written = written

    async def begin(self, uid: JobUid, attempt: int, notices: Sequence[str]) -> None:
        """Begin the log of an attempt with the notices, unless it has begun. Raises OSError."""
        if await asyncio.to_thread(self._begin, uid, attempt, notices):
            self._written(uid)

    async def append(self, uid: JobUid, attempt: int, lines: Sequence[str]) -> None:
        """Write lines of an attempt, each without its newline; they can be read when this returns. Only one
        caller at a time for each attempt. Raises OSError."""
        await asyncio.to_thread(self._append, uid, attempt, lines)
        self._written(uid)

    def _begin(self, uid: JobUid, attempt: int, notices: Sequence[str]) -> bool:
        with self._opened(uid, attempt) as segments:
            is_new = not segments.lines
            if is_new:
                _write(segments, Stream.SERVICE, notices)
        return is_new

    def _append(self, uid: JobUid, attempt: int, lines: Sequence[str]) -> None:
        with self._opened(uid, attempt) as segments:
            _write(segments, Stream.STDOUT, lines)

    def _opened(self, uid: JobUid, attempt: int) -> contextlib.closing[Segments]:
        directory = self._root / str(uid) / str(attempt) / SERVICE_TASK
        return contextlib.closing(Segments(str(directory)))


def _write(segments: Segments, stream: Stream, lines: Sequence[str]) -> None:
    """Write lines. Raise OSError if the disk has no space for them, since they would never be
    written later."""
    segments.write(stream, list(lines))
    if segments.waits:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
