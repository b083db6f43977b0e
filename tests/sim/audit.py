"""Compares a job's timeline with the simulated engine's own record of every process. The controller is not
consulted, because its own records may be incomplete.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from tests.sim.engine.programs import Fate, Incarnation, SimSlot
from tests.sim.reference_rows import SPACING
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.names import JobUid

Which = tuple[int, str, int]
"""Attempt, replica, incarnation."""

_LOST = ("replica_lost", "service_failed")


def timeline_faults(
    uid: JobUid,
    created: int,
    lived: Sequence[tuple[SimSlot, Incarnation]],
    story: Sequence[TimelineEntry],
    *,
    clock_is_true: bool,
) -> Iterator[str]:
    """Return starts and ends in the timeline that are missing, duplicate, wrong or without a process.
    `lived`: incarnations of this job. None starts before `created` (ns), or after its reported start if the
    clock was set back.
    """
    facts = {kinds: _entries_of(story, kinds) for kinds in (("replica_started",), ("replica_exited",), _LOST)}
    for kinds, entries in facts.items():
        for which, count in Counter(which for which, _ in entries).items():
            if count > 1:
                yield f"job {uid}: {kinds[0]} of {which} is told {count} times"
    started, exited, lost = (dict(entries) for entries in facts.values())
    leaving = {which for which, _ in _entries_of(story, ("replica_asked_to_leave",))}
    known = {(s.attempt, str(s.replica), life.number): life for s, life in lived}
    for which, entry in started.items():
        began = max(known[which].start_time, created) if which in known else 0
        if entry.at != began and (clock_is_true or not created <= entry.at <= began):
            yield f"job {uid}: {which} is said to have started at {entry.at}: {known.get(which)}"
    for which, entry in exited.items():
        if which not in known or not _is_exit(known[which], entry):
            yield f"job {uid}: {which} is said to have ended so: {entry.details}; {known.get(which)}"
    for which, life in known.items():
        if life.lives:
            yield f"job {uid}: all is over, and {which} lives"
        # A replica that was evicted before its start was reported appears in the timeline as leaving, and
        # then as ended.
        if life.start_time and which not in started and which not in leaving:
            yield f"job {uid}: {which} started at {life.start_time}, and its timeline does not say so"
        if life.fate is Fate.EXITED and which not in exited:
            yield f"job {uid}: {which} ended, {life.exit}, and its timeline does not say so"
        if life.fate is Fate.LOST and which not in lost:
            yield f"job {uid}: {which} was lost, {life.cause}, and its timeline does not say so"


def early_restarts(uid: JobUid, lived: Sequence[tuple[SimSlot, Incarnation]], window: int) -> Iterator[str]:
    """Return reducers that restarted sooner than spec/reduction#losses allows. `lived`: incarnations of this
    job while the wall clock was right. `window`: ns.
    """
    before: dict[tuple[int, str], list[Incarnation]] = {}
    for sim_slot, life in lived:
        earlier = before.setdefault((sim_slot.attempt, str(sim_slot.replica)), [])
        if sim_slot.replica.pool == 2 and earlier and earlier[-1].start_time:
            # Count restarts that certainly happened within the window, independent of when each end was
            # reported.
            recent = sum(other.over > life.launch_time - window for other in earlier[:-1])
            due = earlier[-1].start_time + SPACING[min(recent, len(SPACING) - 1)]
            if life.launch_time < due:
                early = due - life.launch_time
                yield f"job {uid}: {sim_slot.replica}.{life.number} begins {early} ns too soon"
        earlier.append(life)


def _entries_of(story: Sequence[TimelineEntry], kinds: Sequence[str]) -> list[tuple[Which, TimelineEntry]]:
    return [(_which(entry), entry) for entry in story if entry.kind in kinds and "replica" in entry.details]


def _which(entry: TimelineEntry) -> Which:
    details = entry.details
    return int(str(details["attempt"])), str(details["replica"]), int(str(details["incarnation"]))


def _is_exit(incarnation: Incarnation, entry: TimelineEntry) -> bool:
    end = incarnation.exit
    if end is None or end.ended != entry.at:
        return False
    details = tuple(entry.details[name] for name in ("exit_code", "signal", "oom", "stopped"))
    return details == (end.exit_code, end.signal, end.oom, end.stopped)
