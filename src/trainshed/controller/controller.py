"""The only writer of state: wakes a job, applies its events in one guarded commit, lets the carrier act.

Level-triggered: everything it does follows from the stored job, so a restart only has to look again. No
polling: jobs are woken by requests, engine events, deadlines and their own carriers.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from trainshed.controller.alarms import Alarms
from trainshed.controller.carrier import Hands, carry_out, preparation, ready
from trainshed.controller.queue import Queue
from trainshed.controller.sightings import event_of, settle_unknown
from trainshed.core.lifecycle.events import (
    CancelRequested,
    Event,
    Instruction,
    JobAdmitted,
    PreparationFailed,
    PrepareRuntime,
    ReleaseSlots,
    ReplicaStarted,
    RuntimePrepared,
    StopReplicas,
    TimelineEntry,
)
from trainshed.core.lifecycle.machine import Deadline, deadlines, instructions, step
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import ReplicaState
from trainshed.core.names import JobUid
from trainshed.engines.port import LinesWritten
from trainshed.store.notices import Notices
from trainshed.store.port import Commit, Ledger, LiveJob, StaleCommit

log = logging.getLogger(__name__)

_STALE_LIMIT = 20
"""Commits in a row that may find the job changed; more mean that another service has taken the lead."""
_TIDY = 1.0
"""Seconds that a stopping service gives to the clearing up after finished jobs."""
_GATHER = 0.01
"""Seconds in which the starts of a gang's replicas are gathered, so that they cost few commits."""
_PAUSE = 1.0
"""Seconds before what could not be applied or carried out is tried again."""


@dataclass(slots=True)
class _Tracked:
    """What the loop holds of a live job between two events. All of it can be lost."""

    live: LiveJob
    carrying: asyncio.Task[None] | None = None
    instruction: Instruction | None = None


@dataclass(slots=True)
class _Inbox:
    events: list[Event] = field(default_factory=list[Event])
    look_again: bool = False


class Controller:
    """One per service, on the service's event loop."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        hands: Callable[[Callable[[JobUid, Event], None]], Hands],
        notices: Notices,
        now: Callable[[], int],
        owner: str,
        max_replicas: int,
    ) -> None:
        self._ledger = ledger
        self._hands = hands(self.report)
        self._notices = notices
        self._now = now
        self._owner = owner
        self._epoch = 0
        self._queue = Queue(max_replicas)
        self._tracked: dict[JobUid, _Tracked] = {}
        self._inbox: defaultdict[JobUid, _Inbox] = defaultdict(_Inbox)
        self._busy: dict[JobUid, asyncio.Task[None]] = {}
        self._alarms = Alarms(now, self._deadline_passed)
        self._watching: asyncio.Task[None] | None = None
        self._closing = False

    async def start(self) -> None:
        """Take the lead, adopt what runs, and go on with every job that is not over."""
        self._epoch = await self._ledger.acquire(self._owner)
        for live in await self._ledger.load_live():
            self._tracked[live.job.uid] = _Tracked(live)
            self._queue.update(live.job)
        await self._hands.engine.start()
        self._queue.nodes = tuple(n.name for n in await self._hands.engine.capacity())
        for uid, attempt in await self._hands.engine.allocations():
            if uid not in self._tracked:
                # Its job ended just before the service did; what comes back is settled as unknown. Not before
                # all are stopped: a stop must not meet the release of the same slots.
                await self._hands.engine.stop(uid, attempt, 0)
        self._watching = asyncio.create_task(self._watch())
        for uid in tuple(self._tracked):
            self.wake(uid)

    async def close(self) -> None:
        """Stop deciding. Commits under way are finished; running programs are not touched."""
        self._closing = True
        self._alarms.close()
        if self._watching is not None:
            self._watching.cancel()
        tidying = self._carrying(final=True)
        if tidying:
            # Jobs that are over give their slots back; what is not done in time the next start does.
            await asyncio.wait(tidying, timeout=_TIDY)
        carrying = self._carrying()
        for task in carrying:
            task.cancel()
        await asyncio.gather(*self._busy.values(), *carrying, return_exceptions=True)
        await self._hands.engine.close()

    def running(self) -> tuple[Job, ...]:
        """Jobs that have, or may have, processes now."""
        jobs = (tracked.live.job for tracked in self._tracked.values())
        return tuple(job for job in jobs if job.launched and not job.state.is_final)

    def _carrying(self, *, final: bool = False) -> list[asyncio.Task[None]]:
        """What is being carried out, of all jobs or of those that are over."""
        return [
            tracked.carrying
            for tracked in self._tracked.values()
            if tracked.carrying is not None and (tracked.live.job.state.is_final or not final)
        ]

    def wake(self, uid: JobUid) -> None:
        """Look at a job: it is new, or a request appended an intent."""
        self._inbox[uid].look_again = True
        self._ensure_busy(uid)

    def report(self, uid: JobUid, event: Event) -> None:
        """Something happened to a job."""
        self._inbox[uid].events.append(event)
        self._ensure_busy(uid)

    def _ensure_busy(self, uid: JobUid) -> None:
        if uid not in self._busy and not self._closing:
            self._busy[uid] = asyncio.create_task(self._work_off(uid))

    def _deadline_passed(self, uid: JobUid, deadline: Deadline) -> None:
        self.report(uid, CancelRequested(deadline.cause, deadline.at))

    async def _work_off(self, uid: JobUid) -> None:
        """Apply all that came in for one job, until nothing is left."""
        stale = 0
        while uid in self._inbox and not self._closing:
            if self._gang_is_starting(uid):
                await asyncio.sleep(_GATHER)
            inbox = self._inbox.pop(uid)
            try:
                await self._apply(uid, inbox)
                stale = 0
            except StaleCommit:
                # A request wrote in between: look at the job again and apply the same events to it.
                stale += 1
                self._put_back(uid, inbox)
                if stale > _STALE_LIMIT:
                    log.error("job %d changes under this service; has another one taken over?", uid)
                    await asyncio.sleep(_PAUSE)
            except Exception:
                log.exception("job %d: its events could not be applied; once more in a second", uid)
                self._put_back(uid, inbox)
                await asyncio.sleep(_PAUSE)
        del self._busy[uid]

    def _gang_is_starting(self, uid: JobUid) -> bool:
        """Whether all that came in is that some replicas of a gang have started, with more to come."""
        inbox, tracked = self._inbox[uid], self._tracked.get(uid)
        if tracked is None or inbox.look_again:
            return False
        waiting = sum(r.state is ReplicaState.WAITING for r in tracked.live.job.replicas)
        starts = sum(isinstance(event, ReplicaStarted) for event in inbox.events)
        return starts == len(inbox.events) < waiting

    def _put_back(self, uid: JobUid, inbox: _Inbox) -> None:
        self._inbox[uid].events[:0] = inbox.events
        self._inbox[uid].look_again = True

    async def _apply(self, uid: JobUid, inbox: _Inbox) -> None:
        tracked = self._tracked.get(uid)
        if inbox.look_again or tracked is None:
            live = await self._ledger.load(uid)
            if live is None:
                await settle_unknown(self._hands.engine, uid, inbox.events)
                return
            if tracked is None:
                tracked = self._tracked[uid] = _Tracked(live)
            tracked.live = live
        await self._advance(tracked, inbox.events)

    async def _advance(self, tracked: _Tracked, events: list[Event]) -> None:
        """Fold the events over the job and commit what changed, then act on what is stored."""
        live = tracked.live
        intents = live.intents
        job, told = live.job, list[TimelineEntry]()
        for event in (*(intent.cancel for intent in intents), *events):
            job = self._fold(job, event, told)
        job = self._admit(job, told)
        if job != live.job or intents:
            consumed = intents[-1].seq if intents else 0
            commit = Commit(job, live.generation, tuple(told), consumed)
            generation = await self._ledger.commit(self._epoch, commit)
            tracked.live = LiveJob(job, generation)
            self._notices.publish(job.uid)
        self._alarms.set(job.uid, deadlines(job))
        self._act(tracked)

    def _fold(self, job: Job, event: Event, told: list[TimelineEntry]) -> Job:
        outcome = step(job, event, self._now())
        told.extend(outcome.timeline)
        return outcome.job

    def _admit(self, job: Job, told: list[TimelineEntry]) -> Job:
        """Ask the scheduler for room; a job whose runtime is there starts in the same commit."""
        self._queue.update(job)
        for admit in self._queue.admissions():
            if admit.uid != job.uid:
                self.wake(admit.uid)  # it asks for itself, when it is its turn
                continue
            job = self._fold(job, JobAdmitted(admit.nodes), told)
            if ready(self._hands.runtimes, job):
                job = self._fold(job, RuntimePrepared(job.attempt), told)
            else:
                told.append(TimelineEntry(self._now(), "preparing", preparation(job)))
            self._queue.update(job)
        return job

    def _act(self, tracked: _Tracked) -> None:
        """Start carrying out what the stored state demands, unless that is being done or was done."""
        job = tracked.live.job
        wanted = next(iter(instructions(job)), None)
        if wanted == tracked.instruction or self._closing:
            if wanted is None and job.state.is_final:
                self._forget(job.uid)
            return
        if isinstance(tracked.instruction, PrepareRuntime) and tracked.carrying is not None:
            tracked.carrying.cancel()  # nothing was started yet, so there is nothing to wait for
        tracked.instruction = wanted
        if wanted is None:
            if job.state.is_final:
                self._forget(job.uid)
            return
        before = tracked.carrying
        tracked.carrying = asyncio.create_task(self._carry(tracked, job, wanted, before))

    async def _carry(
        self,
        tracked: _Tracked,
        job: Job,
        instruction: Instruction,
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None:
            await asyncio.wait((before,))
        while True:
            try:
                await carry_out(self._hands, job, instruction)
            except Exception as failure:
                name = type(instruction).__name__
                log.exception("job %d: %s could not be carried out", job.uid, name)
                if isinstance(instruction, StopReplicas | ReleaseSlots):
                    # Nothing else would ever end the job or give its slots back.
                    await asyncio.sleep(_PAUSE)
                    continue
                self.report(job.uid, PreparationFailed(job.attempt, repr(failure), by_user=False))
            break
        if job.state.is_final:
            self._forget(job.uid)

    def _forget(self, uid: JobUid) -> None:
        self._tracked.pop(uid, None)
        self._alarms.set(uid, ())
        self._notices.forget(uid)

    async def _watch(self) -> None:
        async for seen in self._hands.engine.watch():
            if not isinstance(seen, LinesWritten):
                self.report(seen.job_uid, event_of(seen))
            else:
                self._notices.publish(seen.job_uid)
