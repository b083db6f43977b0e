"""The output and reports of simulated programs, which survive program, slot and node."""

import json
from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from tests.sim.engine.programs import Reports
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import StreamKind, StreamSource
from trainshed.core.study.records import Measurement
from trainshed.core.units import Nanos


class Line(Struct, frozen=True):
    """A printed line. `n`: counts from 0 per replica and attempt. `at`: ns, strictly ascending."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    n: int
    at: Nanos
    text: str


class Journals:
    """The lines of all jobs, each job's in the order of printing."""

    def __init__(self) -> None:
        self._lines: defaultdict[JobUid, list[Line]] = defaultdict(list)
        self._last: dict[tuple[JobUid, int, ReplicaId], Line] = {}

    def write(
        self, uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, *, at: Nanos, text: str
    ) -> Line:
        before = self._last.get((uid, attempt, replica))
        n, earliest = (before.n + 1, before.at + 1) if before else (0, 0)
        line = Line(attempt, replica, incarnation, n, max(at, earliest), text)
        self._lines[uid].append(line)
        self._last[uid, attempt, replica] = line
        return line

    def of(self, uid: JobUid) -> Sequence[Line]:
        return self._lines.get(uid, ())

    def remove(self, uid: JobUid) -> None:
        self._lines.pop(uid, None)


class BytesSegment:
    """A `core.streams.Segment` in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]


class JournalStreams:
    """Implements `core.streams.Streams` for the output of simulated programs. Other streams are empty."""

    def __init__(self, journals: Journals) -> None:
        self._journals = journals

    def sources(self, job_uid: JobUid) -> Sequence[StreamSource]:
        lines = self._journals.of(job_uid)
        return [StreamSource(job_uid, *key) for key in {(a.attempt, a.replica) for a in lines}]

    def open(self, source: StreamSource, kind: StreamKind) -> Sequence[BytesSegment]:
        """Return the log in the format of a shim; [] for other kinds."""
        entries = [
            json.dumps({"n": line.n, "t": line.at, "s": "o", "m": line.text})
            for line in self._journals.of(source.job_uid)
            if (line.attempt, line.replica) == (source.attempt, source.replica)
        ]
        if kind is not StreamKind.LOG or not entries:
            return []
        return [BytesSegment("".join(f"{entry}\n" for entry in entries).encode())]

    def remove(self, job_uid: JobUid) -> None:
        self._journals.remove(job_uid)


class Notebooks:
    """The measurements of each job: the first start of its program, and the newest value of each metric and
    step."""

    def __init__(self) -> None:
        self._started: dict[JobUid, int] = {}
        self._values: defaultdict[JobUid, dict[int, dict[str, float]]] = defaultdict(dict)
        self._last: dict[tuple[JobUid, int], int] = {}

    def write(self, uid: JobUid, started: Nanos, at: Nanos, report: Reports) -> None:
        """Record a report. `started`: start time of the reporting program, ns."""
        self._started.setdefault(uid, started)
        self._values[uid].setdefault(report.step, {})[report.metric] = report.value
        self._last[uid, report.step] = at

    def measurements(self, job_uid: JobUid, started: Nanos = 0) -> tuple[Measurement, ...]:
        """Implement `read_metrics`: ascending by step, the metrics of each in alphabetical order."""
        begin = started or self._started.get(job_uid, 0)
        steps = sorted(self._values.get(job_uid, {}).items())
        return tuple(
            Measurement(tuple(sorted(values.items())), step, max(0, self._last[job_uid, step] - begin))
            for step, values in steps
        )
