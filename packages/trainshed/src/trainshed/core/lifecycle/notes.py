"""Records notes of replicas (messages to users) as timeline entries: about disks, reductions, lost files and
warm starts (spec/reduction#reports, spec/machines#disk).

Replicas on one node share a file system, so each shortage of a node's disk is recorded only once.
"""

from typing import Any, Final

from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Replica
from trainshed.core.lifecycle.replica_events import ReplicaNoted
from trainshed.core.lifecycle.transition import Transition
from trainshed.core.names import public_replica_name

NO_ROOM: Final = "disk_no_room"
ROOM_AGAIN: Final = "disk_room_again"
_WARM_START: Final = "warm_start"
KINDS: Final = {
    # Notes to users from the module `trainshed.replica.observe.disk`.
    **dict.fromkeys((NO_ROOM, ROOM_AGAIN, "disk_nearly_full", "disk_exceeded"), "disk"),
    **dict.fromkeys(("disk_log_waits", "disk_log_goes_on"), "disk"),
    # Notes to users from the modules `shim`, `sidecars` and `warm_start` of `trainshed.replica.supervisor`.
    "grace_used": "grace",
    "storage_written_here": "storage",
    "rank_claimed": "ranks",
    "started_warm": _WARM_START,
    "started_cold": _WARM_START,
}
"""The kind of the timeline entry by the name of the note (a message to users). All other notes are about a
reduction."""


def record_note(transition: Transition, replica: Replica, event: ReplicaNoted) -> None:
    """Record a replica's note, a message to users, on the timeline. For a shortage of disk space on a node,
    record only the beginning and the end."""
    # Skip notes (messages to users) that are already recorded: after a restart of the service, engines report
    # old notes again.
    if event.number <= replica.notes:
        return
    job, node, kind = transition.job, replica.node, KINDS.get(event.name, "reduction")
    changes: dict[str, Any] = {"began": event.text} if kind == _WARM_START else {}
    transition.change_replica(replica.id, notes=event.number, **changes)
    subject = public_replica_name(job.name.api, replica.id)
    if node is not None and event.name in (NO_ROOM, ROOM_AGAIN):
        is_short = event.name == NO_ROOM
        if is_short == (node in job.short_disks):
            return
        others = tuple(other for other in job.short_disks if other != node)
        transition.change(short_disks=(*others, node) if is_short else others)
        subject = f"Node {node}"
    details = {
        "attempt": job.attempt,
        "replica": str(replica.id),
        "incarnation": replica.incarnation,
        "node": node,
        "note": event.name,
        "severity": event.severity,
        "text": event.text,
    }
    warns = event.severity != "INFO" and kind != _WARM_START
    shown_kind = f"{kind}_warning" if warns else kind
    transition.record(TimelineEntry(event.at, shown_kind, f"{subject}: {event.text}", details))
