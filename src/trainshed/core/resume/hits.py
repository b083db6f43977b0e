"""What a job's timeline tells of its drills: what each hit, what the failure table decided, when it was up again.

Reads the entries' details (`core.lifecycle.timeline`), never their texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trainshed.core.lifecycle.drills import Drill
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job

_ENDED: Final = frozenset({"replica_exited", "replica_lost", "service_failed"})


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the failure table decided. `count` of `budget`: which restart or retry it was, 0 where none is counted."""

    at: int
    rule: str
    effect: str
    count: int
    budget: int
    message: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A drill that fired, and what came of it. Times in ns, 0 = not come.

    `began`, `ended`: the incarnation that was hit; `ended` is the injection where the end is not told. `restarted`: the
    next incarnation's start, in this attempt or a later one; `until`: the start of the one after that.
    """

    drill: Drill
    began: int
    ended: int
    ruling: Ruling | None
    restarted: int = 0
    attempt: int = 0
    incarnation: int = 0
    until: int = 0


def hits(job: Job, timeline: Sequence[TimelineEntry]) -> tuple[Hit, ...]:
    """The drills that fired, in the order of their numbers. `timeline` in the order in which it was written."""
    return tuple(_hit(drill, timeline) for drill in job.drills if not drill.is_armed)


def _hit(drill: Drill, timeline: Sequence[TimelineEntry]) -> Hit:
    replica = str(drill.replica)
    lived = (drill.attempt, drill.incarnation)
    began = ended = 0
    later: list[tuple[tuple[int, int], int]] = []
    for entry in timeline:
        if entry.details.get("replica") != replica or "incarnation" not in entry.details:
            continue
        life = (int(entry.details.get("attempt", 1)), int(entry.details["incarnation"]))
        if entry.kind == "replica_started" and life == lived:
            began = entry.at
        elif entry.kind in _ENDED and life == lived:
            ended = entry.at
        elif entry.kind == "replica_started" and life > lived:
            later.append((life, entry.at))
    later.sort()
    next_life, restarted = later[0] if later else ((0, 0), 0)
    return Hit(
        drill,
        began,
        ended or drill.fired,
        _ruling(drill, timeline),
        restarted,
        *next_life,
        until=later[1][1] if len(later) > 1 else 0,
    )


def _ruling(drill: Drill, timeline: Sequence[TimelineEntry]) -> Ruling | None:
    """The first verdict after the injection that names the drill, or is on the replica that it hit."""
    fired = False
    for entry in timeline:
        details = entry.details
        if entry.kind == "drill_fired" and details.get("drill") == drill.number:
            fired = True
        if not fired or entry.kind != "verdict" or details.get("attempt") != drill.attempt:
            continue
        if details.get("drill", drill.number) == drill.number and (
            "drill" in details or details.get("replica") == str(drill.replica)
        ):
            return Ruling(
                entry.at,
                str(details.get("rule", "")),
                str(details.get("effect", "")),
                int(details.get("count", 0)),
                int(details.get("budget", 0)),
                entry.message,
            )
    return None
