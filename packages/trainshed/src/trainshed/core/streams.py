"""The streams of replicas besides events, which their shims write, read through one port.

Every engine runs the same shim, so the content of a stream is the same everywhere: whole lines of
JSON. The last line may be torn. The engine determines where the bytes are, and how they reach the
service.
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
    """A part of a stream. Its bytes only grow, at the end. Its methods block for as long as a small read
    takes."""

    def size(self) -> int:
        """Return the number of bytes that can be read now; 0 once it has been removed."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Return at most `size` bytes from `offset`; b"" at the end, or once it has been removed."""
        ...


class Streams(Protocol):
    """All streams of an engine. They outlive slots and nodes, until `remove`. Thread-safe. Readers
    have no state to release: a follower of a stream continues from its last offset when an event
    announces more data."""

    def sources(self, job_uid: JobUid) -> Sequence[StreamSource]:
        """Return every replica of every attempt that has any stream, in no order. Blocks briefly."""
        ...

    def open(self, source: StreamSource, kind: StreamKind) -> Sequence[Segment]:
        """Return the present segments, oldest first, each of which starts with a whole line; () if
        there are none. A LOG may have many segments, and only the last one grows; any other stream
        has one. Blocks briefly."""
        ...

    def remove(self, job_uid: JobUid) -> None:
        """Delete all streams of a job, if there are any. Blocks. Raise OSError if that fails; the call may
        then be repeated."""
        ...
