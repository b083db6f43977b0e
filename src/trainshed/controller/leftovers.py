"""Events of the engine as events of a job, and what is done about those of jobs that are over or slotless."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator

from trainshed.core.lifecycle.events import Event
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost, ReplicaStarted
from trainshed.core.lifecycle.states import ReplicaState
from trainshed.core.names import JobUid
from trainshed.engines.port import Engine, EngineUnavailable

_NO_SLOT = "nothing is left of it here: the data directory was restored, or its slots were lost"
_PAUSE = 1.0
"""Seconds before an engine that could not answer is asked again."""


def lost_without_slots(
    job: Job, allocated: Collection[tuple[JobUid, int]]
) -> Iterator[ReplicaLost]:
    """The loss of what ran, by the record, of a job whose attempt has no slots: the data directory was
    restored from a backup, or lost its slots. Nobody else would ever tell of it."""
    if (job.uid, job.attempt) not in allocated:
        for replica in job.replicas:
            if replica.state in {ReplicaState.RUNNING, ReplicaState.STOPPING}:
                yield ReplicaLost(job.attempt, replica.id, replica.incarnation, _NO_SLOT)


async def settle_leftovers(
    engine: Engine,
    stored: Callable[[JobUid], Job | None],
    lose_slotless: Callable[[Collection[tuple[JobUid, int]]], None],
) -> None:
    """A start finds slots of jobs that ended just before the service did, or were set aside: stop what lives
    of them, and give back what does not; what still has to die is settled as unknown when it does. And it
    finds jobs that have lost their slots: `lose_slotless` is told what slots there are. Tries again while the
    engine cannot answer."""
    while True:
        try:
            allocated = await engine.allocations()
            lose_slotless(frozenset(allocated))
            for uid, attempt in allocated:
                if stored(uid) is None:
                    await engine.stop(uid, attempt, 0)
                    with contextlib.suppress(EngineUnavailable):
                        await engine.release(uid, attempt)
        except (EngineUnavailable, OSError):  # A full disk, say: a stop is written down first.
            await asyncio.sleep(_PAUSE)
        else:
            return


async def settle_unknown(engine: Engine, uid: JobUid, events: Iterable[Event]) -> None:
    """Something still runs of a job that is over or deleted (the service died before it could clean up): stop
    it and give its slots back once all of it is down."""
    for event in events:
        match event:
            case ReplicaStarted():
                await engine.stop(uid, event.attempt, 0)
            case ReplicaExited() | ReplicaLost():
                # While another replica of it lives this is refused; the last one's end brings us back.
                with contextlib.suppress(EngineUnavailable):
                    await engine.release(uid, event.attempt)
            case _:
                pass
