"""The interface for streams of data that replicas' shims write in addition to events.

Every engine runs the same shim, so all streams have the same format: whole lines of JSON. Only the last line
may be incomplete. Engines determine the location of the bytes and their way to the service.
"""

import enum
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from trainshed.core.names import JobUid, ReplicaId


class StreamKind(enum.StrEnum):
    """The content of a stream of a job's log files."""

    #: Output of the program, and messages of the service.
    LOG = "log"
    #: Resource usage of the replica.
    USAGE = "usage"
    #: Measurements of a trial.
    METRICS = "metrics"
    #: How the replica's programs were started.
    LAUNCHES = "launches"


class StreamSource(Struct, frozen=True):
    """One replica in one attempt of a job."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId


class Segment(Protocol):
    """A part of a stream. New data is only appended. Its methods block for the time of a small read."""

    def size(self) -> int:
        """Return the number of readable bytes, or 0 after the segment has been removed."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Return at most `size` bytes from `offset`. Return b"" at the end, or after the segment has been
        removed."""
        ...


class Streams(Protocol):
    """All streams of an engine, such as the logs of replicas. Streams exist until `remove` deletes them, even
    after their replicas have ended and released their nodes. Thread-safe. Readers have no state to release. A
    reader that follows a stream continues from its last offset when an event announces more data."""

    def sources(self, job_uid: JobUid) -> Sequence[StreamSource]:
        """Return all replicas of all attempts of a job that have streams, in no particular order. Blocks
        briefly."""
        ...

    def open(self, source: StreamSource, kind: StreamKind) -> Sequence[Segment]:
        """Return the present segments of a stream, oldest first, or () if it has none.

        Each segment starts with a whole line. A LOG may have many segments, and only the last one grows. Any
        other stream has one segment. Blocks briefly.
        """
        ...

    def remove(self, job_uid: JobUid) -> None:
        """Delete all streams of a job. Blocks. Raise OSError if the deletion fails. The caller may then
        retry."""
        ...
