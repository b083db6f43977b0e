"""Which queued jobs start now, and on which nodes.

Relaxed capacity mode (SPEC §2): any valid job runs on what the host has, so every queued job is admitted at
once; order decides only who starts first, and replicas are dealt out over the nodes in turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainshed.core.names import JobUid, ReplicaId


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits: what the order depends on, and the gang that needs room."""

    uid: JobUid
    priority: int
    created: int
    replicas: tuple[ReplicaId, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the scheduler may look at. `nodes`: names of the nodes that take work."""

    queued: tuple[QueuedJob, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Admit:
    """The whole gang gets its places at once."""

    uid: JobUid
    nodes: tuple[tuple[ReplicaId, str], ...]


def plan(snapshot: Snapshot) -> tuple[Admit, ...]:
    """Admissions in the order in which the jobs start: priority, then age (SPEC §2, "Queue").

    No nodes: nothing is admitted.
    """
    if not snapshot.nodes:
        return ()
    ordered = sorted(snapshot.queued, key=lambda job: (-job.priority, job.created, job.uid))
    return tuple(Admit(job.uid, _deal(job.replicas, snapshot.nodes)) for job in ordered)


def _deal(
    replicas: Sequence[ReplicaId], nodes: Sequence[str]
) -> tuple[tuple[ReplicaId, str], ...]:
    return tuple((replica, nodes[i % len(nodes)]) for i, replica in enumerate(replicas))
