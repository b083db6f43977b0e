"""Cleans up the engine's slots (positions of replicas on nodes) of finished or unknown jobs, and reports jobs
that have lost their slots."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence

from trainshed.core.lifecycle.events import Event
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost, ReplicaStarted
from trainshed.core.lifecycle.states import ReplicaState
from trainshed.core.names import JobUid
from trainshed.engines.port import Engine, EngineUnavailable

_NO_SLOT = "this service has no record of it: the data directory was restored, or its slots were lost"
_RETRY_INTERVAL = 1.0
"""Seconds before a request to an unavailable engine is repeated."""


async def settle_leftovers(
    engine: Engine,
    stored: Callable[[JobUid], Job | None],
    adopted: Sequence[Job],
    report: Callable[[JobUid, Event], None],
) -> None:
    """Clean up the slots (positions of replicas on nodes) that earlier services have allocated.

    Slots of finished or unreadable jobs are stopped and, if they have no processes, released.
    `settle_unknown` releases the other slots when their programs end. An adopted job may have lost its slots
    because the data directory was restored from a backup. The loss of each of its replicas is then reported,
    because no engine reports it. Retries while the engine does not respond.
    """
    while True:
        try:
            allocated = await engine.allocations()
            known = frozenset(allocated)
            for job in adopted:
                for replica in job.replicas if (job.uid, job.attempt) not in known else ():
                    if replica.state in {ReplicaState.RUNNING, ReplicaState.STOPPING}:
                        lost = ReplicaLost(
                            attempt=job.attempt,
                            replica=replica.id,
                            incarnation=replica.incarnation,
                            cause=_NO_SLOT,
                        )
                        report(job.uid, lost)
            over = [_give_back(engine, *slots) for slots in allocated if stored(slots[0]) is None]
            # All jobs are processed, so that a node that does not respond delays no others.
            for failure in filter(None, await asyncio.gather(*over, return_exceptions=True)):
                raise failure
        except (EngineUnavailable, OSError):  # OSError: the engine could not store a stop order.
            await asyncio.sleep(_RETRY_INTERVAL)
        else:
            return


async def _give_back(engine: Engine, uid: JobUid, attempt: int) -> None:
    await engine.stop(uid, attempt, 0)
    with contextlib.suppress(EngineUnavailable):
        await engine.release(uid, attempt)


async def settle_unknown(engine: Engine, uid: JobUid, events: Iterable[Event]) -> None:
    """Stop the remaining programs of a finished or deleted job whose clean-up an earlier service did not
    complete. Release the slots (positions on nodes) of its replicas once all programs have ended."""
    for event in events:
        match event:
            case ReplicaStarted():
                await engine.stop(uid, event.attempt, 0)
            case ReplicaExited() | ReplicaLost():
                # The engine does not release the job's slots while another replica of the job is alive. The
                # event of the last replica's end repeats this call.
                with contextlib.suppress(EngineUnavailable):
                    await engine.release(uid, event.attempt)
            case _:
                pass
