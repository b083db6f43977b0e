"""Reads the log of a job onward for a follower: ranges of complete lines, as they are stored in the files.

A reader remembers the byte that it has reached, so that its place is searched only once, at the beginning.
Blocks.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import Segment, StreamKind, Streams, StreamSource
from trainshed.store.logs.lines import LogPosition
from trainshed.store.logs.segments import place_after

Texts = Sequence[str]
"""Lines in the form in which they are sent, in their order."""
Write = Callable[[StreamSource, bytes], Texts]
"""Makes texts of complete lines as they are stored."""


class Writer:
    """The log of one replica of a job: its attempts one after the other. Even if the clock was set back
    between two attempts, the later one is not read before the earlier one is finished."""

    __slots__ = ("_attempts", "_number", "_offset", "_segments", "latest")

    def __init__(self) -> None:
        #: The attempts that are not read yet, each after the line with a number; -1 = all of it.
        self._attempts: list[tuple[Streams, StreamSource, int]] = []
        #: The segments of the first of them, and the place in these.
        self._segments: Sequence[Segment] = ()
        self._number = self._offset = 0
        #: The last attempt that is known; 0 = none.
        self.latest = 0

    def add(self, streams: Streams, source: StreamSource, seen: int) -> None:
        """Add the log of an attempt that is later than those before."""
        self._attempts.append((streams, source, seen))
        self.latest = source.attempt

    def read(self, most: int, write: Write) -> tuple[Texts | None, bool]:
        """Return the next lines, about `most` bytes of them (None: there are none now), and whether there are
        more behind them."""
        while self._attempts:
            streams, source, seen = self._attempts[0]
            if not self._segments and (segments := streams.open(source, StreamKind.LOG)):
                self._segments = segments
                self._number, self._offset = place_after(segments, seen)
            data, goes_on = self._next(most) if self._segments else (b"", False)
            if data and (texts := write(source, data)):
                return texts, goes_on or len(self._attempts) > 1
            if goes_on:
                continue
            if len(self._attempts) == 1:
                break
            del self._attempts[0]
            self._segments = ()
        return None, False

    def _next(self, most: int) -> tuple[bytes, bool]:
        """Return the next lines of the first attempt, and whether there is more to read of it. A line that is
        not complete waits for its rest."""
        data = self._segments[self._number].read(self._offset, most)
        end = data.rfind(b"\n") + 1
        self._offset += end
        if len(data) == most:
            return (data[:end], True) if end else self._next(2 * most)
        if self._number + 1 < len(self._segments):
            # The next segment was known before this one was read to its end, so nothing more is added to this
            # one.
            self._number, self._offset = self._number + 1, 0
            return data[:end], True
        streams, source, _ = self._attempts[0]
        self._segments = streams.open(source, StreamKind.LOG) or self._segments
        return data[:end], self._number + 1 < len(self._segments)


class JobLog:
    """The log of a job after a position, of some replicas or (None) all of them."""

    def __init__(
        self,
        streams: Sequence[Streams],
        uid: JobUid,
        position: LogPosition,
        replicas: Collection[ReplicaId] | None,
    ) -> None:
        self._streams = streams
        self._uid = uid
        self._position = position
        self._replicas = replicas
        self._writers: dict[ReplicaId, Writer] = {}

    def writers(self) -> Iterable[Writer]:
        """Return the logs of the replicas that have written something by now, in the order of replicas."""
        sources = [
            (source.replica, source.attempt, streams, source)
            for streams in self._streams
            for source in streams.sources(self._uid)
            if self._replicas is None or source.replica in self._replicas
        ]
        is_new = False
        for replica, attempt, streams, source in sorted(sources, key=lambda row: row[:2]):
            begun, seen = self._position.get(replica, (0, -1))
            writer = self._writers.get(replica)
            if attempt < begun or (writer is not None and attempt <= writer.latest):
                continue
            if writer is None:
                writer = self._writers[replica] = Writer()
                is_new = True
            writer.add(streams, source, seen if attempt == begun else -1)
        if is_new:
            self._writers = dict(sorted(self._writers.items()))
        return self._writers.values()
