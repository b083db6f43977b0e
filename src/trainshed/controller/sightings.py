"""What an engine sees, put into the words of the job's machine; and what is done about jobs that are over."""

import contextlib
from collections.abc import Iterable
from typing import assert_never

from trainshed.core.lifecycle.events import Event, ReplicaExited, ReplicaLost, ReplicaStarted
from trainshed.core.names import JobUid
from trainshed.engines.port import Engine, EngineUnavailable, SlotExited, SlotLost, SlotStarted


def event_of(seen: SlotStarted | SlotExited | SlotLost) -> Event:
    """The event of the job that a sighting is."""
    match seen:
        case SlotStarted(_, attempt, replica, incarnation, at):
            return ReplicaStarted(attempt, replica, incarnation, at)
        case SlotExited(_, attempt, replica, incarnation, exit_record):
            return ReplicaExited(attempt, replica, incarnation, exit_record)
        case SlotLost(_, attempt, replica, incarnation, cause, by_service):
            return ReplicaLost(attempt, replica, incarnation, cause, by_service)
        case _:
            assert_never(seen)


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
