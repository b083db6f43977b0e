"""Stores the streams of replicas (logs, usage, metrics) as files of this machine, for every engine whose
shims write here, and for lines of the service itself.

`<root>/<job uid>/<attempt>/<replica>/` contains the log as `<number of the first line, 12 digits>.jsonl`
(written by `trainshed.replica.observe.segments`), and `usage.jsonl`, `metrics.jsonl`, `launches.jsonl`.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainshed.core.names import SERVICE, SERVICE_TASK, JobUid, ReplicaId
from trainshed.core.streams import Segment, StreamKind, StreamSource

_SEGMENT = re.compile(r"(\d{12})\.jsonl")


class FileSegment:
    """A `Segment` in one file. The file is closed between reads: a job may have more replicas than a process
    may have open files."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, offset: int, size: int) -> bytes:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)


class FileStreams:
    """Implements `core.streams.Streams` with files below `root`, which need not exist yet."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def directory(self, source: StreamSource) -> Path:
        """Return the directory of a replica's streams."""
        return self._root / f"{source.job_uid}/{source.attempt}/{source.replica}"

    def sources(self, job_uid: JobUid) -> Sequence[StreamSource]:
        job = self._root / str(job_uid)
        return [
            StreamSource(job_uid, int(attempt), replica)
            for attempt in _names(job)
            if attempt.isdecimal()
            for replica in self._replicas(job / attempt)
        ]

    def open(self, source: StreamSource, kind: StreamKind) -> Sequence[Segment]:
        directory = self.directory(source)
        if kind is StreamKind.LOG:
            names = sorted(name for name in _names(directory) if _SEGMENT.fullmatch(name))
            return [FileSegment(directory / name) for name in names]
        path = directory / f"{kind}.jsonl"
        return [FileSegment(path)] if path.exists() else []

    def remove(self, job_uid: JobUid) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._root / str(job_uid))

    def _replicas(self, attempt: Path) -> Iterator[ReplicaId]:
        for name in _names(attempt):
            with contextlib.suppress(ValueError):
                yield ReplicaId.parse(name)


class ServiceStreams(FileStreams):
    """The service's own lines in the logs of jobs, stored as if `SERVICE` were a replica."""

    def _replicas(self, attempt: Path) -> Iterator[ReplicaId]:
        if (attempt / SERVICE_TASK).is_dir():
            yield SERVICE


def _names(directory: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(directory)]
    except (FileNotFoundError, NotADirectoryError):
        return []
