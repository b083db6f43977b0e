"""Log lines, pages of them, and the two ways to remember a place: a cursor in the merged order of all
replicas, and a vector of positions, one per replica."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.core.names import SERVICE, JobUid, ReplicaId
from trainshed.store.logs.severity import Severity, Stream

OrderKey = tuple[int, int, int, int, int]
"""(time, pool, index, attempt, line number): the one order of all lines of a job."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a job's log."""

    uid: JobUid
    attempt: int
    replica: ReplicaId
    #: Counts from 0 per replica and attempt without gaps.
    n: int
    #: Nanoseconds since the epoch; ascends strictly with `n`.
    at: int
    stream: Stream
    text: str
    severity: Severity
    #: See `severity.Reading`.
    payload: dict[str, Any] | None = None
    #: The next line of the replica goes on with the same line of the program (a line over 64 KiB comes in
    #: parts).
    partial: bool = False

    @property
    def is_notice(self) -> bool:
        """Whether it is one of those that a job's log begins with, which stand on its timeline too."""
        return self.replica == SERVICE and self.stream is Stream.SERVICE

    @property
    def insert_id(self) -> str:
        """Unique over all jobs; of lines of one job with equal times, ascending as text in `key`'s order."""
        return f"{self.uid:016x}{self.replica.pool:x}{self.replica.index:06x}{self.attempt:04x}{self.n:010x}"

    @property
    def key(self) -> OrderKey:
        return (self.at, self.replica.pool, self.replica.index, self.attempt, self.n)

    @property
    def cursor(self) -> "LogCursor":
        return LogCursor(self.at, self.replica, self.attempt, self.n)


@dataclass(frozen=True, slots=True)
class LogCursor:
    """The place of one line in the merged order; as text it is a page token."""

    at: int
    replica: ReplicaId
    attempt: int
    n: int

    @property
    def key(self) -> OrderKey:
        return (self.at, self.replica.pool, self.replica.index, self.attempt, self.n)

    def __str__(self) -> str:
        return f"{self.at}.{self.replica.pool}.{self.replica.index}.{self.attempt}.{self.n}"

    @staticmethod
    def parse(text: str) -> "LogCursor":
        """The cursor that `str` wrote. Raises ValueError for anything else."""
        parts = text.split(".")
        if len(parts) != 5 or not all(part.isascii() and part.isdigit() for part in parts):
            raise ValueError(f"{text!r} is not a place in a log; begin again from the first page")
        at, pool, index, attempt, n = map(int, parts)
        return LogCursor(at, ReplicaId(pool, index), attempt, n)


@dataclass(frozen=True, slots=True)
class LogPage:
    """`next`: pass it as `after` for the following page; None if the log holds no more at this time."""

    lines: tuple[LogLine, ...]
    next: LogCursor | None


LogPosition = Mapping[ReplicaId, tuple[int, int]]
"""Per replica (attempt, n) of the last line that a follower has seen; a replica not yet seen is absent."""


def advanced(position: LogPosition, lines: tuple[LogLine, ...]) -> LogPosition:
    """The position of a follower that had `position` and then got `lines` from `LogReader.lines_since`."""
    moved = dict(position)
    for line in lines:
        place = (line.attempt, line.n)
        if place > moved.get(line.replica, (-1, -1)):
            moved[line.replica] = place
    return moved
