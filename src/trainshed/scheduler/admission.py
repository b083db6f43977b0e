"""Which queued jobs start now, and on which nodes.

Relaxed capacity mode (SPEC §2): any valid job runs on what the host has. The one bound is on how many
replicas run at once, so that a thousand jobs submitted together do not start a thousand programs together.
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

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sorts jobs in the order in which they start: priority, then age (SPEC §2, "Queue")."""
        return (-self.priority, self.created, self.uid)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the scheduler may look at.

    `queued` ascends by rank. `nodes`: names of the nodes that take work. `running`: replicas that have a
    place now; `limit`: how many may.
    """

    queued: Sequence[QueuedJob]
    nodes: tuple[str, ...]
    running: int
    limit: int


@dataclass(frozen=True, slots=True)
class Admit:
    """The whole gang gets its places at once."""

    uid: JobUid
    nodes: tuple[tuple[ReplicaId, str], ...]


def plan(snapshot: Snapshot) -> tuple[Admit, ...]:
    """Admissions in the order in which the jobs start. A gang is placed whole or not at all; one larger
    than the limit runs alone. The first that does not fit holds back those behind it, so none starves."""
    if not snapshot.nodes:
        return ()
    admitted: list[Admit] = []
    running = snapshot.running
    for job in snapshot.queued:
        if running and running + len(job.replicas) > snapshot.limit:
            break
        admitted.append(Admit(job.uid, _deal(job.replicas, snapshot.nodes)))
        running += len(job.replicas)
    return tuple(admitted)


def _deal(replicas: Sequence[ReplicaId], nodes: Sequence[str]) -> tuple[tuple[ReplicaId, str], ...]:
    return tuple((replica, nodes[i % len(nodes)]) for i, replica in enumerate(replicas))
