"""Checks regularly whether the GPUs of running jobs are busy. Warns about idle jobs, then stops them,
according to the settings."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from trainshed.core.errors import FailedPrecondition, NotFound, Unavailable
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed.eventloop.background import Crew
from trainshed.store.logs.reader import LogReader
from trainshed.store.logs.usage import Life
from trainshed.store.sqlite.jobs import Intake
from trainshed.store.sqlite.reader import Reader
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

IDLE: Final = "idle"
"""The kind of the timeline entry about an idle job."""
CHECK_INTERVAL: Final = 60.0
"""Seconds between two checks."""
BUSY_GPU: Final = 0.02
"""A GPU counts as busy if it works for at least this fraction of the time."""


class IdlePolicy(Struct, frozen=True):
    """Maximum idle times of a job in nanoseconds. 0 disables a limit."""

    #: Time for which all GPUs of a job must be idle before the service warns.
    gpus: int = 0
    #: Time from the warning until the job is stopped. 0 never stops the job.
    stop: int = 0


@dataclass(slots=True)
class IdleWatch:
    """Warns about idle jobs and stops them.

    `running`: returns the jobs that have processes. `wake`: notifies the controller of pending work for a
    job. `publish`: notifies followers of a job. `now`: ns since the epoch.
    """

    policy: IdlePolicy
    running: Callable[[], Iterable[Job]]
    usages: LogReader
    reader: Reader
    intake: Intake
    wake: Callable[[JobUid], None]
    publish: Callable[[JobUid], None]
    now: Callable[[], int]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _crew: Crew = field(init=False, default_factory=Crew)

    def start(self) -> None:
        """Start the checks, if the policy requires them."""
        if self.policy.gpus:
            self._crew.keep(self._run, "checking for idle jobs")

    async def close(self) -> None:
        """Stop the checks."""
        await self._crew.close()

    async def _run(self) -> None:
        while True:
            await self.sleep(CHECK_INTERVAL)
            await self.check()

    async def check(self) -> None:
        """Check each running job once."""
        for job in tuple(self.running()):
            if job.state is not JobState.RUNNING:
                continue
            try:
                await self._look_at(job)
            except (FailedPrecondition, NotFound):
                continue  # The job has just ended. Skip it.
            except (OSError, Unavailable) as failure:
                about(log, job.uid).warning("cannot determine whether it is idle: %s", failure)

    async def _look_at(self, job: Job) -> None:
        usages = await self.usages.usage(job.uid, job.attempt)
        lives = {(used.replica, life.incarnation): life for used in usages for life in used.lives}
        up = [(r.id, r.incarnation) for r in job.replicas if r.state is ReplicaState.RUNNING]
        since, until = idle_span([lives[which] for which in up if which in lives])
        if not all(which in lives for which in up) or not 0 < self.policy.gpus <= until - since:
            return
        timeline = await self.reader.timeline(job.uid)
        warned = [entry.at for entry in timeline if entry.kind == IDLE and entry.at > since]
        if not warned:
            text = f"The GPUs of the job have been idle for {_span(until - since)}."
            if self.policy.stop:
                text += f" The service stops the job in {_span(self.policy.stop)} unless it uses its GPUs."
            entry = TimelineEntry(self.now(), IDLE, text, {"since": since})
            await self.intake.add_timeline_entry((job.uid,), entry)
            self.publish(job.uid)
        elif 0 < self.policy.stop <= until - min(warned):
            stop = CancelRequested(CancelCause.IDLE, self.now())
            self.wake(await self.intake.request_cancel(job.name, stop))


def idle_span(lives: Sequence[Life]) -> tuple[Nanos, Nanos]:
    """Return the start and the end of the period in which all GPUs of these replicas were idle. Return (0, 0)
    for replicas without GPUs, or if a GPU has no measurements yet."""
    points = [(life.started, life.points()) for life in lives]
    if not all(measured for _, measured in points):
        return 0, 0
    with_gpus = [(began, measured) for began, measured in points if measured[-1].gpus]
    if not with_gpus:
        return 0, 0
    # The period starts at the last measurement that was not idle, or at the start of the replica.
    since = max(
        next((point.at for point in reversed(measured) if not _is_idle(point.gpus)), began)
        for began, measured in with_gpus
    )
    return since, min(measured[-1].at for _, measured in points)


def _is_idle(gpus: Sequence[float | None]) -> bool:
    """Return whether all GPUs are known to be idle."""
    return all(busy is not None and busy < BUSY_GPU for busy in gpus)


def _span(length: int) -> str:
    seconds = length // 10**9
    count, word = (seconds // 60, "minute") if seconds >= 60 else (seconds, "second")
    return f"{count} {word}{'' if count == 1 else 's'}"
