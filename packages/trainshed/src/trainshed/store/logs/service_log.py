"""Writes the service's own lines in a job's log: its notices, and the output of environment builds.

The directory layout and the format are the same as those of replicas' logs
(`trainshed.replica.observe.segments`). The replica is the pseudo-replica `SERVICE`. Lines survive the end of
the service, but they are not synced to disk. After a crash of the machine, the next build prints its output
again. A sync during a build would wait for all data that the build writes.
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
    """Writes logs below the directory `root`. `written`: called on the event loop when a job has new
    lines."""

    def __init__(self, root: Path, written: Callable[[JobUid], None]) -> None:
        self._root = root
        self._written = written

    async def start(self, uid: JobUid, attempt: int, notices: Sequence[str]) -> None:
        """Start the log of an attempt with these notices, unless the log already exists. Raise OSError if the
        write fails."""
        if await asyncio.to_thread(self._begin, uid, attempt, notices):
            self._written(uid)

    async def append(self, uid: JobUid, attempt: int, lines: Sequence[str]) -> None:
        """Write lines of an attempt, each without its newline. When this method returns, readers can read
        them. Do not append to an attempt's log from several tasks at the same time. Raise OSError if the
        write fails."""
        await asyncio.to_thread(self._append, uid, attempt, lines)
        self._written(uid)

    def _begin(self, uid: JobUid, attempt: int, notices: Sequence[str]) -> bool:
        with self._open(uid, attempt) as segments:
            is_new = not segments.lines
            if is_new:
                _write(segments, Stream.SERVICE, notices)
        return is_new

    def _append(self, uid: JobUid, attempt: int, lines: Sequence[str]) -> None:
        with self._open(uid, attempt) as segments:
            _write(segments, Stream.STDOUT, lines)

    def _open(self, uid: JobUid, attempt: int) -> contextlib.closing[Segments]:
        directory = self._root / str(uid) / str(attempt) / SERVICE_TASK
        return contextlib.closing(Segments(str(directory)))


def _write(segments: Segments, stream: Stream, lines: Sequence[str]) -> None:
    """Write lines. Raise OSError if the disk is full, because no later call may write the remaining lines."""
    segments.write(stream, list(lines))
    if segments.waits:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
