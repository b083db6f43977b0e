"""Looks now and then whether running jobs do anything; warns those that do not, then stops them, as the
settings say. `core.idling` decides what is idle, and what follows.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from trainshed.core.errors import FailedPrecondition, NotFound, Unavailable
from trainshed.core.idling import Action, IdlePolicy, Span, verdict, warning
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.names import JobUid
from trainshed.eventloop.background import Crew
from trainshed.store.logs.reader import LogReader
from trainshed.store.logs.usage import Life
from trainshed.store.sqlite.jobs import Intake
from trainshed.store.sqlite.reader import Reader
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

IDLE: Final = "idle"
"""The kind of the timeline's entry."""
PAUSE: Final = 60.0
"""Seconds between two checks."""


@dataclass(slots=True)
class IdleWatch:
    """Warns and stops idle jobs.

    `running`: returns the jobs that have processes. `wake`: tells the controller that a job has something to
    do. `publish`: tells those who follow a job that there is news. `now`: ns since the epoch.
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
        """Begin to check jobs, if the policy asks for it."""
        if self.policy.is_set:
            self._crew.keep(self._run, "looking for idle jobs")

    async def close(self) -> None:
        """Stop checking."""
        await self._crew.close()

    async def _run(self) -> None:
        while True:
            await self.sleep(PAUSE)
            await self.look()

    async def look(self) -> None:
        """Check each running job once."""
        for job in tuple(self.running()):
            if job.state is not JobState.RUNNING:
                continue
            try:
                await self._look_at(job)
            except (FailedPrecondition, NotFound):
                continue  # It has ended just now.
            except (OSError, Unavailable) as failure:
                about(log, job.uid).warning("whether it is idle is not known: %s", failure)

    async def _look_at(self, job: Job) -> None:
        usages = await self.usages.usage(job.uid, job.attempt)
        lives = {(used.replica, life.incarnation): life for used in usages for life in used.lives}
        up = [(r.id, r.incarnation) for r in job.replicas if r.state is ReplicaState.RUNNING]
        spans = [_spans(lives[which]) if which in lives else () for which in up]
        if verdict(self.policy, spans, ()) is None:
            return
        timeline = await self.reader.timeline(job.uid)
        warned = [entry.at for entry in timeline if entry.kind == IDLE]
        idle = verdict(self.policy, spans, warned)
        if idle is None:
            return
        if idle.action is Action.WARN:
            message = warning(idle, self.policy)
            entry = TimelineEntry(self.now(), IDLE, message, {"since": idle.since})
            await self.intake.tell(job.uid, (entry,))
            self.publish(job.uid)
        else:
            stop = CancelRequested(CancelCause.IDLE, self.now())
            self.wake(await self.intake.request_cancel(job.name, stop))


def _spans(life: Life) -> Sequence[Span]:
    points = life.points()
    ends = [life.started, *(point.at for point in points)]
    return [
        Span(begin, end, point.gpus)
        for (begin, end), point in zip(pairwise(ends), points, strict=True)
    ]
