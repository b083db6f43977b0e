"""What a stored job demands: the instructions that are to be carried out now, in their order
(docs/adr/0004)."""

from collections.abc import Iterator

from trainshed.core import reduction
from trainshed.core.lifecycle.events import (
    DropReducers,
    InjectFault,
    Instruction,
    PrepareRuntime,
    ReleaseSlots,
    StartReplicas,
    StopReplica,
    StopReplicas,
)
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import AttemptState, ReplicaState
from trainshed.core.names import ReplicaId


def instructions(job: Job) -> tuple[Instruction, ...]:
    """What is to be done now, for this state; doing it again harms nothing."""
    match job.phase:
        case AttemptState.WAITING | AttemptState.OVER:
            return (ReleaseSlots(job.attempt),) if job.attempt else ()
        case AttemptState.PREPARING:
            return (PrepareRuntime(job.attempt),)
        case AttemptState.STARTING | AttemptState.RUNNING:
            return tuple(_while_running(job))
        case AttemptState.STOPPING:
            return (StopReplicas(job.attempt, _unseen(job)),)


def _while_running(job: Job) -> Iterator[Instruction]:
    for replica in job.replicas:
        if replica.state is ReplicaState.STOPPING:
            yield StopReplica(job.attempt, replica.id, replica.incarnation)
    if lost := _lost_reducers(job):
        yield DropReducers(job.attempt, lost)
    if due := _due(job):
        yield StartReplicas(job.attempt, due)
    for drill in job.drills:
        if drill.kind.is_of_process and drill.fired and not drill.done:
            yield InjectFault(
                drill.number, drill.kind, drill.attempt, drill.replica, drill.incarnation
            )


def _lost_reducers(job: Job) -> tuple[ReplicaId, ...]:
    """Those that the job goes on without, however they ended."""
    reducers = reduction.reducers(job.spec)
    return tuple(r.id for r in job.replicas if r.id in reducers and r.state.is_over)


def _unseen(job: Job) -> tuple[tuple[ReplicaId, int], ...]:
    """Incarnations of which nobody knows whether they have started, those that were to leave their node among
    them."""
    leaving = tuple(
        (replica.id, replica.incarnation)
        for replica in job.replicas
        if replica.state is ReplicaState.STOPPING and not replica.started
    )
    return _waiting(job) + leaving


def _due(job: Job) -> tuple[tuple[ReplicaId, int], ...]:
    """Of those that wait, the ones that are to be started now."""
    paused = {replica.id for replica in job.replicas if replica.not_before}
    return tuple(each for each in _waiting(job) if each[0] not in paused)


def _waiting(job: Job) -> tuple[tuple[ReplicaId, int], ...]:
    """Incarnations that have a place and no process yet, as far as is known."""
    return tuple(
        (replica.id, replica.incarnation)
        for replica in job.replicas
        if replica.state is ReplicaState.WAITING and replica.node
    )
