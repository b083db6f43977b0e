"""Which life of a replica belongs to which attempt, and which lives ended because a node was drained.

What the programs and those who acted on them know decides; the service's own story only says which start is
which.
"""

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tests.chaos import logs
from tests.chaos.diary import LifeSeen, ReplicaSeen
from tests.chaos.expected import Moves
from tests.chaos.plans import Pool
from tests.chaos.victim import Span, overlaps

_RESTARTS: Final = 5


@dataclass(frozen=True, slots=True)
class Start:
    """A start as the timeline tells it. `at`: ns; 0 if only its end was told."""

    attempt: int
    incarnation: int
    at: int


@dataclass(frozen=True, slots=True)
class Fates:
    """What became of one replica. `attempts`: of each life. `moved`: lives that were ended by a drain."""

    seen: ReplicaSeen
    starts: tuple[Start, ...]
    attempts: tuple[int, ...]
    moved: frozenset[int]
    asked_to_leave: int
    unmade: int
    """Starts that no shim took up while zygotes hung."""

    @property
    def counts(self) -> Counter[int]:
        """Lives by attempt."""
        return Counter(self.attempts)

    def moves(self, full: Iterable[int]) -> Moves:
        """`full`: attempts that a start on a full disk ended."""
        starts = Counter(start.attempt for start in self.starts)
        lives = {attempt: self.counts[attempt] for attempt in full}
        return Moves(self.moved, starts - self.counts, lives)

    @property
    def is_worn(self) -> bool:
        """Whether drains may have cost it all its restarts in an attempt, and so the attempt."""
        return bool(self.moved) and any(start.incarnation > _RESTARTS for start in self.starts)

    def needless(self) -> list[int]:
        """Lives after which there was another one in the same attempt, though no drain ended them."""
        return [
            life.number
            for life, attempt, following in zip(
                self.seen.lives, self.attempts, self.attempts[1:], strict=False
            )
            if attempt == following and life.number not in self.moved
        ]


def fates(
    replica: str,
    pool: Pool,
    seen: ReplicaSeen,
    timeline: Iterable[Mapping[str, Any]],
    lines: Iterable[logs.Line],
    killed: set[tuple[str, int]],
    drains: Sequence[Span],
    hangs: Sequence[Span],
) -> Fates:
    """Put together what is known."""
    mine = [entry for entry in timeline if entry["details"].get("replica") == replica]
    starts = tuple(_starts(mine))
    parts, _ = logs.parts(lines)
    attempt_of = {part.token: part.attempt for part in parts}
    attempts = [
        attempt_of.get(life.token) or _attempt_at(life.begun, starts) for life in seen.lives
    ]
    moved = {
        life.number
        for life, attempt, following, its_attempt in zip(
            seen.lives, attempts, seen.lives[1:], attempts[1:], strict=False
        )
        if overlaps(drains, life.begun, following.begun)
        and _is_moved(life, pool, its_attempt == attempt, (replica, life.number) in killed)
    }
    asked_to_leave = sum(entry["kind"] == "replica_asked_to_leave" for entry in mine)
    unmade = sum(
        "no shim came up" in entry["message"]
        and overlaps(hangs, at := nanoseconds(entry["at"]), at)
        for entry in mine
        if entry["kind"] == "replica_lost"
    )
    return Fates(seen, starts, tuple(attempts), frozenset(moved), asked_to_leave, unmade)


def ended_by_full_disk(
    timeline: Iterable[Mapping[str, Any]], full: Sequence[Span]
) -> Iterator[int]:
    """Attempts of which a start found no room on the disk (docs/adr/0045). `full`: when the disk was; a
    service may come to say so when it is started anew."""
    for entry in timeline:
        if entry["kind"] == "service_failed" and os.strerror(errno.ENOSPC) in entry["message"]:
            at = nanoseconds(entry["at"])
            if overlaps(full, at, at):
                yield entry["details"]["attempt"]


def _is_moved(life: LifeSeen, pool: Pool, stays: bool, killed: bool) -> bool:
    """Whether a life that another one followed, in the same attempt if `stays`, can only have been ended by a
    drain.

    One that ended by itself while it was told to leave counts as told (docs/adr/0011): then it is restarted
    in place.
    """
    end = pool.life(life.number).end
    if end.is_kill:
        return not killed
    return stays or life.end != end.value


def _starts(entries: Iterable[Mapping[str, Any]]) -> list[Start]:
    """Of one that ended while no service ran, or was told to leave before, the start is not told: its end
    tells of it."""
    starts: list[Start] = []
    for entry in entries:
        if entry["kind"] in ("replica_started", "replica_exited", "replica_lost"):
            details = entry["details"]
            attempt, incarnation = details["attempt"], details["incarnation"]
            if entry["kind"] == "replica_started":
                starts.append(Start(attempt, incarnation, nanoseconds(entry["at"])))
            elif all(
                (start.attempt, start.incarnation) != (attempt, incarnation) for start in starts
            ):
                starts.append(Start(attempt, incarnation, 0))
    return starts


def _attempt_at(moment: int, starts: Iterable[Start]) -> int:
    """The attempt of the latest start before a moment."""
    return max((start.attempt for start in starts if start.at <= moment), default=1)


def nanoseconds(text: str) -> int:
    """An RFC 3339 moment in UTC, which the API cuts to microseconds: its last nanosecond."""
    return round(datetime.fromisoformat(text).timestamp() * 1e6) * 1000 + 999
