"""Reads the logs of jobs: pages by time over all replicas and attempts, new lines for followers, the last
lines.

The service also writes lines of its own, about the preparation of an attempt (`service_log`). They are merged
with the replicas' lines. Their source is the pseudo-replica `SERVICE`.
"""

import asyncio
import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice, takewhile
from typing import TypeVar

import msgspec
from msgspec import Struct

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import Segment, StreamKind, Streams, StreamSource
from trainshed.core.units import Bytes, Nanos
from trainshed.store.logs.lines import LogCursor, LogLine, LogPage, LogPosition, OrderKey, read_line
from trainshed.store.logs.progress import Sample, is_small, sample
from trainshed.store.logs.segments import Entry, ReplicaLog, contents, decode_lines, records
from trainshed.store.logs.usage import ReplicaUsage, read_usage

Line = TypeVar("Line")

_Keyed = tuple[OrderKey, Entry, "Source"]

_SHORT_PAGE = 200
_FEW_SOURCES = 16
"""A page of at most `_SHORT_PAGE` lines from at most `_FEW_SOURCES` replicas is read on the event loop's own
thread. This takes about two milliseconds."""


class Launch(msgspec.Struct, frozen=True):
    """The record of one start of a program."""

    #: Number of the replica's run (incarnation), or 0 if unknown.
    incarnation: int = 0
    #: Time of the start in nanoseconds since the epoch.
    at: Nanos = 0
    argv: tuple[str, ...] = ()
    #: The program's working directory, or None for the replica's own directory.
    directory: str | None = None
    #: Names of all environment variables of the program, sorted.
    names: tuple[str, ...] = ()
    #: Values of the variables that the service sets to describe the program's environment
    #: (`replica.supervisor.sidecars.RECORDED_VARIABLES`).
    values: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    #: The replica's hostname, or None for the machine's hostname.
    hostname: str | None = None
    address: str = ""
    #: The sandbox's isolation level.
    level: str = ""
    #: Unix user ID, or None for the service's own user.
    user: int | None = None
    #: Limits of memory, of disk, and of the number of processes and threads. None means no limit.
    memory: Bytes | None = None
    disk: Bytes | None = None
    processes: int | None = None
    #: UUIDs of the program's GPUs.
    gpus: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(Launch)


def read_launches(
    held: Iterable[Streams], job_uid: JobUid, attempt: int, replica: ReplicaId
) -> tuple[Launch, ...]:
    """Return the records of all starts of a replica in an attempt, in order. Return () if it never started.
    Blocks for a small read."""
    kept = contents(held, job_uid, StreamKind.LAUNCHES, attempt, replica)
    return tuple(launch for _, data in kept for launch in records(data, _decoder))


class LogReader:
    """Reads logs. `streams`: the engine's streams, and the service's own streams. A reader has no state, so
    any number of readers may exist."""

    def __init__(self, *streams: Streams) -> None:
        self._streams = streams

    async def page(
        self,
        uid: JobUid,
        *,
        replicas: Collection[ReplicaId] | None = None,
        start: int = 0,
        end: int | None = None,
        after: LogCursor | None = None,
        limit: int = 1000,
        longest: float = math.inf,
        descending: bool = False,
    ) -> LogPage:
        """Return at most `limit` lines with start <= at < end (ns since the epoch), in the order of
        `LogLine.key`, or in the opposite order if `descending`.

        The time of a line is set a moment before the line is written to its file. To read all lines of a
        running job page by page, pass an `end` that is one second in the past.

        Args:

        - after: return only lines after this line in the order.
        - replicas: return only lines of these replicas. None = all replicas.
        - longest: the page ends after this many characters.
        """
        window = _Window(start, end, after.key if after else None, descending)
        sources = self._sources(uid, replicas)
        if limit <= _SHORT_PAGE and len(sources) <= _FEW_SOURCES:
            return _page(sources, window, limit, longest)
        return await asyncio.to_thread(_page, sources, window, limit, longest)

    def new_entries(
        self, uid: JobUid, seen: LogPosition, since: Nanos = 0, replicas: Collection[ReplicaId] | None = None
    ) -> Iterator[tuple[Entry, "Source"]]:
        """Yield the lines from `since` on that are not in `seen`, merged by time, each with the log that
        contains it. Blocks."""

        def read(_: Source, block: bytes) -> tuple[list[bytes], list[Entry]]:
            entries = decode_lines(block)
            return [b"%019d" % entry.t for entry in entries], entries

        for source, entries in self.new_line_groups(uid, seen, since, replicas, read):
            for entry in entries:
                yield entry, source

    def new_line_groups(
        self,
        uid: JobUid,
        seen: LogPosition,
        since: Nanos,
        replicas: Collection[ReplicaId] | None,
        read: Callable[["Source", bytes], tuple[list[bytes], list[Line]]],
    ) -> Iterator[tuple["Source", list[Line]]]:
        """Yield the lines from `since` on that are not in `seen`, merged by time. Blocks. Consecutive lines
        of a source are in one group. The lines of each replica have no gaps, even if lines of other replicas
        arrive late. The lines of an attempt follow those of the previous attempt, even if the clock was set
        back between them. `read` returns the times and the lines of a block of stored lines."""
        logs: dict[ReplicaId, list[Iterator[tuple[Source, list[bytes], list[Line]]]]] = {}
        for source in sorted(self._sources(uid, replicas), key=lambda source: source.attempt):
            logs.setdefault(source.replica, []).append(source.unseen_blocks(seen, since, read))
        # For each replica: the time of its next line, its rank among equal times, its next lines, and its
        # later blocks.
        heads = [
            (run[1][0], (replica.pool, replica.index), run, rest)
            for replica, parts in logs.items()
            if (run := next(rest := chain.from_iterable(parts), None))
        ]
        heapq.heapify(heads)
        while heads:
            _, rank, (source, times, lines), rest = heapq.heappop(heads)
            end = len(times)
            if heads and heads[0][:2] < (times[-1], rank):
                time, other = heads[0][:2]
                end = (bisect_right if rank < other else bisect_left)(times, time)
            yield source, lines[:end]
            run = (source, times[end:], lines[end:]) if end < len(times) else next(rest, None)
            if run:
                heapq.heappush(heads, (run[1][0], rank, run, rest))

    def _sources(self, uid: JobUid, replicas: Collection[ReplicaId] | None) -> list["Source"]:
        """Return the logs of these replicas. None = the logs of all replicas."""
        return [
            Source(uid, source.attempt, source.replica, ReplicaLog(streams, source))
            for streams in self._streams
            for source in streams.sources(uid)
            if replicas is None or source.replica in replicas
        ]

    async def tail(
        self, uid: JobUid, n: int, *, replicas: Collection[ReplicaId] | None = None
    ) -> tuple[LogLine, ...]:
        """Return the last `n` lines in ascending order."""
        page = await self.page(uid, replicas=replicas, limit=n, descending=True)
        return page.lines[::-1]

    async def sample(self, source: StreamSource, place: int, whole: int) -> Sample:
        """Return a sample of a replica's lines after the first `place` bytes. If they have at most `whole`
        bytes, return all lines. Otherwise, return pieces of the whole log and the last lines."""
        segments = self._open(source, StreamKind.LOG)
        if is_small(segments, place):
            return sample(segments, place)
        return await asyncio.to_thread(sample, segments, place, whole)

    def _open(self, source: StreamSource, kind: StreamKind) -> Sequence[Segment]:
        for streams in self._streams:
            if stream := streams.open(source, kind):
                return stream
        return ()

    async def usage(self, uid: JobUid, attempt: int) -> tuple[ReplicaUsage, ...]:
        """Return the sampled resource usage of the replicas of an attempt."""
        return await asyncio.to_thread(read_usage, self._streams, uid, attempt)

    async def launches(self, uid: JobUid, attempt: int, replica: ReplicaId) -> tuple[Launch, ...]:
        """Return the records of all starts of a replica in an attempt, in order."""
        return await asyncio.to_thread(read_launches, self._streams, uid, attempt, replica)

    async def remove(self, uid: JobUid) -> None:
        """Delete the job's log and all files next to it. Has no effect if the job has no log. Raise OSError
        if the deletion fails. The caller may then call this method again."""
        for streams in self._streams:
            await asyncio.to_thread(streams.remove, uid)


class Source(Struct, frozen=True):
    """One replica's log in one attempt. Its fields are part of the sort key."""

    uid: JobUid
    attempt: int
    replica: ReplicaId
    log: ReplicaLog

    def key(self, entry: Entry) -> OrderKey:
        return (entry.t, self.replica.pool, self.replica.index, self.attempt, entry.n)

    def line(self, entry: Entry) -> LogLine:
        reading = read_line(entry.s, entry.m)
        return LogLine(
            self.uid,
            self.attempt,
            self.replica,
            entry.n,
            entry.t,
            entry.s,
            reading.text,
            reading.severity,
            reading.payload,
            partial=bool(entry.p),
        )

    def unseen_blocks(
        self,
        seen: LogPosition,
        since: Nanos,
        read: Callable[["Source", bytes], tuple[list[bytes], list[Line]]],
    ) -> Iterator[tuple["Source", list[bytes], list[Line]]]:
        """Yield blocks of lines from `since` on that a follower has not received, with the times of the
        lines, in ascending order."""
        attempt, last = seen.get(self.replica, (0, -1))
        if attempt > self.attempt:
            return
        last = last if attempt == self.attempt else -1
        for block in self.log.blocks(lambda entry: entry.n <= last or entry.t < since):
            times, lines = read(self, block)
            if times:
                yield self, times, lines


class _Window(Struct, frozen=True):
    start: int
    end: int | None
    after: OrderKey | None
    descending: bool

    def of(self, source: Source) -> Iterator[_Keyed]:
        """Return the source's entries inside the window, in the order of the window."""
        after, start, end = self.after, self.start, self.end
        if self.descending:

            def is_before(entry: Entry) -> bool:
                return (end is None or entry.t < end) and (after is None or source.key(entry) < after)

            entries = takewhile(lambda entry: entry.t >= start, source.log.backwards(is_before))
        else:

            def is_before(entry: Entry) -> bool:
                return entry.t < start or (after is not None and source.key(entry) <= after)

            entries = takewhile(lambda entry: end is None or entry.t < end, source.log.forwards(is_before))
        return ((source.key(entry), entry, source) for entry in entries)


def _page(sources: list[Source], window: _Window, limit: int, longest: float) -> LogPage:
    merged = heapq.merge(*map(window.of, sources), reverse=window.descending)
    entries: list[_Keyed] = []
    for entry in islice(merged, limit + 1):
        if longest <= 0:
            limit = min(limit, len(entries))
        entries.append(entry)
        if len(entries) > limit:
            break
        longest -= len(entry[1].m)
    lines = tuple(source.line(entry) for _, entry, source in entries[:limit])
    return LogPage(lines, lines[-1].cursor if len(entries) > limit and lines else None)
