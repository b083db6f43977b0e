"""Which incarnation of a replica belongs to which attempt, and which incarnations ended because of a drain.

The diaries and the recorded actions decide. The service's timeline only assigns starts to attempts.
"""

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tests.chaos import logs
from tests.chaos.diary import ObservedIncarnation, ObservedReplica
from tests.chaos.expected import Moves
from tests.chaos.plans import Pool
from tests.chaos.victim import Span, overlaps

_RESTARTS: Final = 5


@dataclass(frozen=True, slots=True)
class Start:
    """A start in the timeline. `at`: ns; 0 if the timeline only contains its end."""

    attempt: int
    incarnation: int
    at: int


@dataclass(frozen=True, slots=True)
class ReplicaHistory:
    """The history of a replica. `attempts`: attempt of each incarnation. `moved`: incarnations ended by a
    drain."""

    observed: ObservedReplica
    starts: tuple[Start, ...]
    attempts: tuple[int, ...]
    moved_incarnations: frozenset[int]
    asked_to_leave: int
    unmade: int
    """Starts without a shim, because zygotes were hung."""

    @property
    def counts(self) -> Counter[int]:
        """Return incarnations by attempt."""
        return Counter(self.attempts)

    def moves(self, full: Iterable[int]) -> Moves:
        """Return the external influences on the replica. `full`: attempts that ended with a start on a full
        disk."""
        starts = Counter(start.attempt for start in self.starts)
        lives = {attempt: self.counts[attempt] for attempt in full}
        return Moves(self.moved_incarnations, starts - self.counts, lives)

    @property
    def is_worn(self) -> bool:
        """Return whether drains may have used all restarts of an attempt, and therefore ended it."""
        return bool(self.moved_incarnations) and any(start.incarnation > _RESTARTS for start in self.starts)

    def needless(self) -> list[int]:
        """Return incarnations followed by another one in the same attempt, without a drain."""
        return [
            life.number
            for life, attempt, following in zip(
                self.observed.lives, self.attempts, self.attempts[1:], strict=False
            )
            if attempt == following and life.number not in self.moved_incarnations
        ]


def replica_history(
    replica: str,
    pool: Pool,
    seen: ObservedReplica,
    timeline: Iterable[Mapping[str, Any]],
    lines: Iterable[logs.Line],
    killed: set[tuple[str, int]],
    drains: Sequence[Span],
    hangs: Sequence[Span],
) -> ReplicaHistory:
    """Combine diaries, actions and timeline."""
    mine = [entry for entry in timeline if entry["details"].get("replica") == replica]
    starts = tuple(_starts(mine))
    parts, _ = logs.parts(lines)
    attempt_of = {part.token: part.attempt for part in parts}
    attempts = [attempt_of.get(life.token) or _attempt_at(life.start_time, starts) for life in seen.lives]
    moved = {
        life.number
        for life, attempt, following, its_attempt in zip(
            seen.lives, attempts, seen.lives[1:], attempts[1:], strict=False
        )
        if overlaps(drains, life.start_time, following.start_time)
        and _is_moved(life, pool, its_attempt == attempt, (replica, life.number) in killed)
    }
    asked_to_leave = sum(entry["kind"] == "replica_asked_to_leave" for entry in mine)
    unmade = sum(
        "no shim came up" in entry["message"] and overlaps(hangs, at := nanoseconds(entry["at"]), at)
        for entry in mine
        if entry["kind"] == "replica_lost"
    )
    return ReplicaHistory(seen, starts, tuple(attempts), frozenset(moved), asked_to_leave, unmade)


def ended_by_full_disk(timeline: Iterable[Mapping[str, Any]], full: Sequence[Span]) -> Iterator[int]:
    """Return attempts that ended with a start on a full disk (docs/adr/0045). `full`: the periods; a service
    may report it only after a restart.
    """
    for entry in timeline:
        if entry["kind"] == "service_failed" and os.strerror(errno.ENOSPC) in entry["message"]:
            at = nanoseconds(entry["at"])
            if overlaps(full, at, at):
                yield entry["details"]["attempt"]


def _is_moved(life: ObservedIncarnation, pool: Pool, stays: bool, killed: bool) -> bool:
    """Return whether only a drain can have ended an incarnation that was followed by another, in the same
    attempt if `stays`.

    An incarnation that exits during its eviction counts as evicted (docs/adr/0011) and is restarted in place.
    """
    end = pool.life(life.number).end
    if end.is_kill:
        return not killed
    return stays or life.end != end.value


def _starts(entries: Iterable[Mapping[str, Any]]) -> list[Start]:
    """Return a start from its end. The timeline has no start for an incarnation that ended while no service
    ran, or after an earlier eviction notice.
    """
    starts: list[Start] = []
    for entry in entries:
        if entry["kind"] in ("replica_started", "replica_exited", "replica_lost"):
            details = entry["details"]
            attempt, incarnation = details["attempt"], details["incarnation"]
            if entry["kind"] == "replica_started":
                starts.append(Start(attempt, incarnation, nanoseconds(entry["at"])))
            elif all((start.attempt, start.incarnation) != (attempt, incarnation) for start in starts):
                starts.append(Start(attempt, incarnation, 0))
    return starts


def _attempt_at(moment: int, starts: Iterable[Start]) -> int:
    """Return the attempt of the latest start before a time."""
    return max((start.attempt for start in starts if start.at <= moment), default=1)


def nanoseconds(text: str) -> int:
    """Return the last nanosecond of an RFC 3339 time in UTC, which the API truncates to microseconds."""
    return round(datetime.fromisoformat(text).timestamp() * 1e6) * 1000 + 999
