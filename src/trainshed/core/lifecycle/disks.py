"""What replicas' shims have seen of disks: whose files are too many for what its job asked for, where no room is left
(SPEC §1.5). Each replica of a gang sees the same file system: of one node it is told once, as long as it lasts.
"""

from typing import Final

from trainshed.core.failure.evidence import Cause
from trainshed.core.job.exits import ExitRecord
from trainshed.core.lifecycle.events import ReplicaNoted, TimelineEntry
from trainshed.core.lifecycle.records import Job, Replica
from trainshed.core.lifecycle.turn import Turn
from trainshed.core.names import public_replica_name

NO_ROOM: Final = "disk_no_room"
ROOM_AGAIN: Final = "disk_room_again"
NOTES: Final = frozenset(
    {
        "disk_nearly_full",
        "disk_full",
        "disk_exceeded",
        NO_ROOM,
        ROOM_AGAIN,
        "disk_log_waits",
        "disk_log_goes_on",
    }
)
"""The names of these notes, as `trainshed.replica.observe.disk` gives them."""
_SAYINGS: Final = ("No space left on device", "ENOSPC")
"""How programs say that nothing more could be written."""


def take_note(turn: Turn, replica: Replica, event: ReplicaNoted) -> None:
    """One of `NOTES`."""
    if event.number <= replica.notes:
        return  # told again to a service that has come back
    turn.change_replica(replica.id, notes=event.number)
    node, short = replica.node, turn.job.short_disks
    if event.name in (NO_ROOM, ROOM_AGAIN):
        if (event.name == NO_ROOM) == (node in short):
            return
        others = tuple(other for other in short if other != node)
        turn.change(short_disks=(*others, node) if event.name == NO_ROOM else others)
        turn.tell(_entry(turn.job, replica, event, f"Node {node}" if node else ""))
    else:
        turn.tell(_entry(turn.job, replica, event, ""))


def suspicion(job: Job, replica: Replica, record: ExitRecord, cause: Cause) -> str:
    """What a failed program's log says of its disk in its last lines, and what is known of that; "" if nothing."""
    if cause not in (Cause.EXITED, Cause.SIGNALLED) or record.exit_code == 0:
        return ""
    saying = next((saying for saying in _SAYINGS if saying in record.tail), "")
    if not saying:
        return ""
    known = replica.node in job.short_disks
    more = f", and the disk of node {replica.node} is nearly full" if known else ""
    return f'the last lines of its log say "{saying}"{more}'


def _entry(job: Job, replica: Replica, event: ReplicaNoted, subject: str) -> TimelineEntry:
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
