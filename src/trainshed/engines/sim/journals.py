"""What simulated programs have printed: kept whatever becomes of the program, its slot and its node."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from trainshed.core.names import JobUid, ReplicaId


@dataclass(frozen=True, slots=True)
class Line:
    """`n` counts from 0 per replica and attempt; `at`: ns, ascends strictly with it."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    n: int
    at: int
    text: str


class Journals:
    """The lines of all jobs, each job's in the order in which they were printed."""

    def __init__(self) -> None:
        self._lines: defaultdict[JobUid, list[Line]] = defaultdict(list)
        self._last: dict[tuple[JobUid, int, ReplicaId], Line] = {}

    def write(
        self, uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, *, at: int, text: str
    ) -> Line:
        before = self._last.get((uid, attempt, replica))
        n, earliest = (before.n + 1, before.at + 1) if before else (0, 0)
        line = Line(attempt, replica, incarnation, n, max(at, earliest), text)
        self._lines[uid].append(line)
        self._last[uid, attempt, replica] = line
        return line

    def of(self, uid: JobUid) -> Sequence[Line]:
        return self._lines.get(uid, ())
