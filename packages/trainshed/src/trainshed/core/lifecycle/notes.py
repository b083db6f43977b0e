"""Notes of replicas as entries of the timeline: on disks, reductions, files that went to no
bucket and warm starts.

Reducers of one job come and go together and report the same. Their notes are therefore gathered for `GATHER`,
or until another event comes, and each text becomes one entry of the timeline (spec/failures,
spec/reduction#reports). Notes on disks are recorded at once (spec/machines#disk): replicas on one node see
the same file system, so a node's shortage is recorded once, for as long as it lasts. The same goes for files
that a node shares with others, and that do not answer.
"""

from collections.abc import Iterator
from typing import Final

from trainshed.core.cluster import is_reducer
from trainshed.core.failure.evidence import Cause
from trainshed.core.job import ExitRecord
from trainshed.core.lifecycle.events import Event, PauseOver, TimelineEntry
from trainshed.core.lifecycle.records import Job, Note, Replica
from trainshed.core.lifecycle.replica_events import ReplicaNoted
from trainshed.core.lifecycle.timeline import REDUCTION_KINDS, START_KINDS, STORAGE_KINDS
from trainshed.core.lifecycle.transition import Transition
from trainshed.core.names import public_replica_name

GATHER: Final = 10**9
"""How long notes are gathered, in nanoseconds from the first one on."""
STORAGE_NOTES: Final = frozenset({"storage_written_here"})
"""The name of the note about files that went to no bucket (`trainshed.replica.supervisor.sidecars`)."""

START_NOTES: Final = frozenset({"started_warm", "started_cold"})
"""The names of notes about how a program began, as `trainshed.replica.supervisor.warm_start` gives them."""


def note_deadlines(job: Job) -> Iterator[tuple[int, Event]]:
    """Yield the moment at which gathered notes are recorded. Any event other than a note records them
    earlier."""
    if job.notes:
        yield job.notes_until, PauseOver(job.notes_until)


def gather_note(transition: Transition, replica: Replica, event: ReplicaNoted) -> None:
    # Numbers ascend; after the service was down, notes that it knows are reported once more.
    if event.number <= replica.notes:
        return
    transition.change_replica(replica.id, notes=event.number)
    if event.name in START_NOTES:
        transition.change_replica(replica.id, began=event.text)
    note = Note(replica.id, replica.incarnation, event.at, event.name, event.severity, event.text)
    until = transition.job.notes_until if transition.job.notes else transition.now + GATHER
    transition.change(notes=(*transition.job.notes, note), notes_until=until)


def record_notes(transition: Transition) -> None:
    """Record the gathered notes in the order in which they came, with equal ones as one entry."""
    alike: dict[tuple[str, str, str], list[Note]] = {}
    for note in transition.job.notes:
        alike.setdefault((note.name, note.severity, note.text), []).append(note)
    if alike:
        transition.record(*(_gathered_entry(transition.job, notes) for notes in alike.values()))
        transition.change(notes=(), notes_until=0)


def _gathered_entry(job: Job, notes: list[Note]) -> TimelineEntry:
    first = notes[0]
    kinds = STORAGE_KINDS if first.name in STORAGE_NOTES else REDUCTION_KINDS
    kinds = START_KINDS if first.name in START_NOTES else kinds
    who = {str(note.replica): note.incarnation for note in notes}
    which = (
        {"replica": str(first.replica), "incarnation": first.incarnation}
        if len(who) == 1
        else {"replicas": who}
    )
    details = {"note": first.name, "severity": first.severity, "text": first.text}
    message = f"{_gathered_subject(job, notes, len(who))}: {first.text}"
    return TimelineEntry(
        first.at,
        kinds[first.severity != "INFO"],
        message,
        {"attempt": job.attempt, **which, **details},
    )


def _gathered_subject(job: Job, notes: list[Note], many: int) -> str:
    first = public_replica_name(job.name.api, notes[0].replica)
    if many == 1:
        return first
    if all(is_reducer(job.spec, note.replica.pool) for note in notes):
        return f"{many} reducers"
    return f"{first} and {many - 1} other{'s' * (many > 2)}"


NO_ROOM: Final = "disk_no_room"
ROOM_AGAIN: Final = "disk_room_again"
DISK_NOTES: Final = frozenset(
    {"disk_nearly_full", "disk_exceeded", NO_ROOM, ROOM_AGAIN, "disk_log_waits", "disk_log_goes_on"}
)
"""The names of notes on disks, as `trainshed.replica.observe.disk` gives them."""
_SAYINGS: Final = ("No space left on device", "ENOSPC")
"""How programs report that nothing more could be written."""


def take_disk_note(transition: Transition, replica: Replica, event: ReplicaNoted) -> None:
    """Record one of `DISK_NOTES`, a node's shortage only when it begins and when it ends."""
    if event.number <= replica.notes:
        return  # reported again after the service was down
    transition.change_replica(replica.id, notes=event.number)
    node, short = replica.node, transition.job.short_disks
    if event.name in (NO_ROOM, ROOM_AGAIN):
        if (event.name == NO_ROOM) == (node in short):
            return
        others = tuple(other for other in short if other != node)
        transition.change(short_disks=(*others, node) if event.name == NO_ROOM else others)
        transition.record(
            _disk_entry(transition.job, replica, event, f"Node {node}" if node else "")
        )
    else:
        transition.record(_disk_entry(transition.job, replica, event, ""))


def disk_suspicion(job: Job, replica: Replica, record: ExitRecord, cause: Cause) -> str:
    """Return what the last log lines of a failed program say of its disk, and whether that disk is known to
    be nearly full; "" if they say nothing."""
    if cause not in (Cause.EXITED, Cause.SIGNALLED) or record.exit_code == 0:
        return ""
    saying = next((saying for saying in _SAYINGS if saying in record.tail), "")
    if not saying:
        return ""
    known = replica.node in job.short_disks
    more = f", and the disk of node {replica.node} is nearly full" if known else ""
    return f'the last lines of its log say "{saying}"{more}'


def _disk_entry(job: Job, replica: Replica, event: ReplicaNoted, subject: str) -> TimelineEntry:
    subject = subject or public_replica_name(job.name.api, replica.id)
    kind = "disk" if event.severity == "INFO" else "disk_warning"
    details: dict[str, object] = {
        "attempt": job.attempt,
        "replica": str(replica.id),
        "incarnation": replica.incarnation,
        "node": replica.node,
        "note": event.name,
        "severity": event.severity,
        "text": event.text,
    }
    return TimelineEntry(event.at, kind, f"{subject}: {event.text}", details)
