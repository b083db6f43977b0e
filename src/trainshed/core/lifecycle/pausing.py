"""Pauses of a job's own: before a replica that died young is started again, and while notes that are alike are gathered.

Reducers of one job come and go together, and each has the same to say, as have replicas whose storage calls fail: of what is
noted within `GATHER` and with nothing else in between, each text becomes one entry of the timeline (SPEC §2.1, §7).
"""

from collections.abc import Iterator
from typing import Final

from trainshed.core.cluster import is_reducer
from trainshed.core.lifecycle.events import Event, PauseOver, ReplicaNoted, TimelineEntry
from trainshed.core.lifecycle.records import Job, Note, Replica
from trainshed.core.lifecycle.states import ReplicaState
from trainshed.core.lifecycle.story import REDUCTION_KINDS, STORAGE_KINDS
from trainshed.core.lifecycle.turn import Turn
from trainshed.core.names import public_replica_name

GATHER: Final = 10**9
"""Nanoseconds from the first note on."""
STORAGE_NOTES: Final = frozenset(
    f"storage_{what}"
    for what in ("untrusted", "denied", "no_bucket", "not_found", "broken", "unreachable")
)
"""The names of notes about storage calls that fail, as `trainshed.replica.endpoint.storage_failures` gives them."""


def deadlines_of(job: Job) -> Iterator[tuple[int, Event]]:
    if job.notes:
        yield job.notes_until, PauseOver(job.notes_until)
    for at in {r.not_before for r in job.replicas if r.state is ReplicaState.WAITING} - {0}:
        yield at, PauseOver(at)


def over(turn: Turn, event: PauseOver) -> None:
    """Replicas whose pause is over may be started; the notes are told with every event but another note."""
    for replica in turn.job.replicas:
        if 0 < replica.not_before <= event.at:
            turn.change_replica(replica.id, not_before=0)


def take_note(turn: Turn, replica: Replica, event: ReplicaNoted) -> None:
    # Numbers ascend; what was told before is told once more to a service that comes back.
    if event.number <= replica.notes:
        return
    turn.change_replica(replica.id, notes=event.number)
    note = Note(replica.id, replica.incarnation, event.at, event.name, event.severity, event.text)
    until = turn.job.notes_until if turn.job.notes else turn.now + GATHER
    turn.change(notes=(*turn.job.notes, note), notes_until=until)


def tell_notes(turn: Turn) -> None:
    """What was gathered, in the order in which it came."""
    alike: dict[tuple[str, str, str], list[Note]] = {}
    for note in turn.job.notes:
        alike.setdefault((note.name, note.severity, note.text), []).append(note)
    if alike:
        turn.tell(*(_entry(turn.job, notes) for notes in alike.values()))
        turn.change(notes=(), notes_until=0)


def _entry(job: Job, notes: list[Note]) -> TimelineEntry:
    first = notes[0]
    kinds = STORAGE_KINDS if first.name in STORAGE_NOTES else REDUCTION_KINDS
    who = {str(note.replica): note.incarnation for note in notes}
    which = (
        {"replica": str(first.replica), "incarnation": first.incarnation}
        if len(who) == 1
        else {"replicas": who}
    )
    said = {"note": first.name, "severity": first.severity, "text": first.text}
    message = f"{_subject(job, notes, len(who))}: {first.text}"
    return TimelineEntry(
        first.at,
        kinds[first.severity != "INFO"],
        message,
        {"attempt": job.attempt, **which, **said},
    )


def _subject(job: Job, notes: list[Note], many: int) -> str:
    first = public_replica_name(job.name.api, notes[0].replica)
    if many == 1:
        return first
    if all(is_reducer(job.spec, note.replica.pool) for note in notes):
        return f"{many} reducers"
    return f"{first} and {many - 1} other{'s' * (many > 2)}"
