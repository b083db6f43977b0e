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


class _Onward:
    """One replica's log of one attempt, after the line with the number `seen`; -1 = all of it."""

    __slots__ = ("_number", "_offset", "_seen", "_segments", "_source", "_streams", "is_followed")

    def __init__(self, streams: Streams, source: StreamSource, seen: int) -> None:
        self._streams = streams
        self._source = source
        self._seen = seen
        self._segments: Sequence[Segment] = ()
        self._number = 0
        self._offset = 0
        #: Whether there was more to read behind the range that was read last.
        self.is_followed = False

    def read(self, most: int, write: Write) -> Texts | None:
        """Return the next lines, about `most` bytes of them; None = there are none now."""
        if not self._segments:
            self._segments = self._open()
            if not self._segments:
                return None
            self._number, self._offset = place_after(self._segments, self._seen)
        while True:
            data, is_full = self._whole_lines(most)
            self.is_followed = is_full or self._goes_on()
            texts = write(self._source, data) if data else ()
            if texts or not self.is_followed:
                return texts or None

    def _goes_on(self) -> bool:
        """Whether there is more to read although this segment is at its end."""
        if self._number + 1 < len(self._segments):
            # The next segment was known before this one was read to its end, so nothing more is added to this
            # one.
            self._number, self._offset = self._number + 1, 0
            return True
        self._segments = self._open() or self._segments
        return self._number + 1 < len(self._segments)

    def _open(self) -> Sequence[Segment]:
        return self._streams.open(self._source, StreamKind.LOG)

    def _whole_lines(self, most: int) -> tuple[bytes, bool]:
        """Return the next lines of this segment, and whether there may be more. A line that is not complete
        waits for its rest."""
        segment = self._segments[self._number]
        while True:
            data = segment.read(self._offset, most)
            end = data.rfind(b"\n") + 1
            if end or len(data) < most:
                self._offset += end
                return data[:end], len(data) == most
            most *= 2


class Writer:
    """The log of one replica of a job: its attempts one after the other. Even if the clock was set back
    between two attempts, the later one is not read before the earlier one is finished."""

    __slots__ = ("_attempts", "latest")

    def __init__(self) -> None:
        self._attempts: list[_Onward] = []
        #: The last attempt that is known; 0 = none.
        self.latest = 0

    def add(self, attempt: int, onward: _Onward) -> None:
        """Add the log of an attempt that is later than those before."""
        self._attempts.append(onward)
        self.latest = attempt

    def read(self, most: int, write: Write) -> tuple[Texts | None, bool]:
        """Return the next lines, about `most` bytes of them (None: there are none now), and whether there are
        more behind them."""
        while self._attempts:
            first, *later = self._attempts
            if texts := first.read(most, write):
                return texts, first.is_followed or bool(later)
            if not later:
                break
            self._attempts = later
        return None, False


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
            writer.add(attempt, _Onward(streams, source, seen if attempt == begun else -1))
        if is_new:
            self._writers = dict(sorted(self._writers.items()))
        return self._writers.values()
