"""The only writer of state: wakes a job, applies its events in one guarded commit, lets the carrier act.

Level-triggered: everything it does follows from the stored job, so a restart only has to look again. No
polling: jobs are woken by requests, engine events, deadlines, decisions of the scheduler and their own carriers.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from trainshed.controller.advancing import Advancing
from trainshed.controller.alarms import Alarms
from trainshed.controller.answers import Answers
from trainshed.controller.carrier import Hands
from trainshed.controller.carrying import Carrying
from trainshed.controller.gathering import Gathering
from trainshed.controller.inboxes import Inbox, Inboxes
from trainshed.controller.parents import Doors, Parents, parent_of
from trainshed.controller.pipelines import PipelineReconciler
from trainshed.controller.room import Room
from trainshed.controller.sightings import (
    event_of,
    lost_without_slots,
    settle_leftovers,
    settle_unknown,
)
from trainshed.controller.tuning import TuningReconciler
from trainshed.controller.watching import LogPages, Watchers
from trainshed.core.lifecycle.events import CheckpointDue, Event, ReplicaStarted
from trainshed.core.lifecycle.machine import Deadline, deadlines
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import AttemptState, ReplicaState
from trainshed.core.lifecycle.turn import FailurePolicy
from trainshed.core.names import JobUid
from trainshed.core.pipelines.records import Pipeline
from trainshed.core.tuning.records import TuningJob
from trainshed.engines.port import LinesWritten, MetricsWritten, NodeChanged
from trainshed.eventloop.background import keep
from trainshed.scheduler.model import Policy
from trainshed.store.notices import Notices
from trainshed.store.port import Commit, Ledger, LiveJob, Reader
from trainshed.store.set_aside import RecordSetAside

log = logging.getLogger(__name__)

_TIDY = 1.0
"""Seconds that a stopping service gives to the clearing up after finished jobs."""
_LIVE = (AttemptState.STARTING, AttemptState.RUNNING, AttemptState.STOPPING)


@dataclass(slots=True)
class _Tracked:
    """What the loop holds of a live job between two events. All of it can be lost."""

    live: LiveJob[Job]
    carrying: Carrying


class Controller:
    """One per service, on the service's event loop."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        reader: Reader,
        logs: LogPages,
        hands: Callable[[Callable[[JobUid, Event], None]], Hands],
        notices: Notices,
        now: Callable[[], int],
        owner: str,
        doors: Doors,
        scheduling: Policy,
        failures: FailurePolicy | None = None,
    ) -> None:
        self._ledger = ledger
        self._reader = reader
        self._hands = hands(self.report)
        self._notices = notices
        self._now = now
        self._owner = owner
        self._epoch = 0
        self._room = Room(scheduling, self._decide_at)
        self.answers = Answers(self._room, now, self._capacity_changed)
        """What the API asks about room."""
        self._advancing = Advancing(
            room=self._room,
            runtimes=self._hands.runtimes,
            now=now,
            failures=failures or FailurePolicy(),
            stored=self._stored,
            report=self.report,
        )
        self._tuning = TuningReconciler(doors, self.wake)
        self._parents = Parents(
            doors,
            {TuningJob: self._tuning, Pipeline: PipelineReconciler(doors)},
            commit=self._commit,
            wake=self.wake,
            set_alarm=self._set_alarm,
        )
        self._tracked: dict[JobUid, _Tracked] = {}
        self._inboxes = Inboxes(self._apply, self._more_starts_to_come)
        self._alarms = Alarms(now, self._deadline_passed)
        self._watchers = Watchers(logs, self._hands.buckets, now, self.report)
        self._watching: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._gathering = Gathering(self.wake)
        self._closing = False

    async def start(self) -> None:
        """Take the lead, adopt what runs, and go on with every job that is not over."""
        self._epoch = await self._ledger.acquire(self._owner)
        parents: list[JobUid] = []
        for live in await self._ledger.load_live():
            if isinstance(live.job, Job):
                self._track(LiveJob(live.job, live.generation, live.intents))
                self._room.put(live.job)
            else:
                parents.append(live.job.uid)
        await self._hands.engine.start()
        self._room.set_nodes(await self._hands.engine.capacity())
        self._room.set_drains(await self._reader.drained_nodes())
        self._room.set_quotas(dict(await self._reader.quotas()))
        # As they were found: what is started from here on may get its slots while the engine is asked for them.
        found = [tracked.live.job for tracked in self._tracked.values()]
        self._settling = keep(
            lambda: settle_leftovers(
                self._hands.engine,
                self._stored,
                lambda allocated: self._lose_slotless(found, allocated),
            ),
            "clearing up after jobs of earlier services",
        )
        self._watching = keep(self._watch, "hearing the engine")
        for uid in (*self._tracked, *parents):
            self.wake(uid)

    def _lose_slotless(
        self, found: Sequence[Job], allocated: Collection[tuple[JobUid, int]]
    ) -> None:
        for job in found:
            for lost in lost_without_slots(job, allocated):
                self.report(job.uid, lost)

    async def close(self) -> None:
        """Stop deciding. Commits under way are finished; running programs are not touched."""
        self._closing = True
        busy = self._inboxes.close()
        self._tuning.close()
        self._alarms.close()
        self._gathering.close()
        self._watchers.close()
        self._advancing.close()
        for task in (self._watching, self._settling):
            if task is not None:
                task.cancel()
        tidying = self._carrying(final=True)
        if tidying:
            # Jobs that are over give their slots back; what is not done in time the next start does.
            await asyncio.wait(tidying, timeout=_TIDY)
        carrying = self._carrying()
        for tracked in self._tracked.values():
            tracked.carrying.cancel()
        await asyncio.gather(*busy, *carrying, return_exceptions=True)
        await self._hands.engine.close()

    def running(self) -> tuple[Job, ...]:
        """Jobs that have, or may have, processes now."""
        jobs = (tracked.live.job for tracked in self._tracked.values())
        return tuple(job for job in jobs if job.phase in _LIVE)

    def wake(self, uid: JobUid) -> None:
        """Look at a job: it is new, or a request appended an intent."""
        self._inboxes.look(uid)

    def set_aside(self, record: RecordSetAside) -> None:
        """A record could not be read: if it is a job's, nobody commits to it any more."""
        if record.source == "jobs":
            self.wake(JobUid(int(record.key)))

    def report(self, uid: JobUid, event: Event) -> None:
        """Something happened to a job."""
        self._inboxes.add(uid, event)

    # --- one job's events ---

    def _track(self, live: LiveJob[Job]) -> _Tracked:
        uid = live.job.uid
        carrying = Carrying(
            self._hands, lambda: self._tracked[uid].live.job, lambda: self._carried(uid)
        )
        tracked = self._tracked[uid] = _Tracked(live, carrying)
        return tracked

    def _stored(self, uid: JobUid) -> Job | None:
        tracked = self._tracked.get(uid)
        return tracked.live.job if tracked else None

    def _carrying(self, *, final: bool = False) -> list[asyncio.Task[None]]:
        """What is being carried out, of all jobs or of those that are over."""
        return [
            tracked.carrying.task
            for tracked in self._tracked.values()
            if tracked.carrying.task is not None and (tracked.live.job.state.is_final or not final)
        ]

    def _deadline_passed(self, uid: JobUid, deadline: Deadline) -> None:
        tracked = self._tracked.get(uid)
        if isinstance(deadline.event, CheckpointDue):
            if tracked is not None:
                job = tracked.live.job
                self._watchers.checkpoint_due(job)
                # The answer sets the next one; until it is there, the job's limits hold all the same.
                others = (d for d in deadlines(job) if not isinstance(d.event, CheckpointDue))
                self._alarms.set(uid, tuple(others))
        else:
            self.report(uid, deadline.event)

    def _more_starts_to_come(self, uid: JobUid, inbox: Inbox) -> bool:
        """Whether all that came in is that some replicas of a gang have started, with more to come."""
        tracked = self._tracked.get(uid)
        if tracked is None or inbox.look_again:
            return False
        replicas = tracked.live.job.replicas
        waiting = sum(r.state is ReplicaState.WAITING and not r.not_before for r in replicas)
        starts = sum(isinstance(event, ReplicaStarted) for event in inbox.events)
        return starts == len(inbox.events) < waiting

    async def _apply(self, uid: JobUid, inbox: Inbox) -> None:
        tracked = self._tracked.get(uid)
        if inbox.look_again or tracked is None:
            live = await self._ledger.load(uid)
            if live is None:
                self._room.forget(uid)
                if tracked is not None and not tracked.live.job.state.is_final:
                    await self._abandon(tracked)
                await settle_unknown(self._hands.engine, uid, inbox.events)
                return
            if not isinstance(live.job, Job):
                await self._parents.apply(live, inbox.events)
                return
            found = LiveJob(live.job, live.generation, live.intents)
            if tracked is None:
                tracked = self._track(found)
            tracked.live = found
        await self._advance(tracked, inbox.events)

    async def _advance(self, tracked: _Tracked, events: list[Event]) -> None:
        """Commit what the events lead to, then act on what is stored."""
        live = tracked.live
        job, told = self._advancing.advance(live, events)
        if job != live.job or live.intents or told:
            consumed = live.intents[-1].seq if live.intents else 0
            commit = Commit(job, live.generation, told, consumed)
            generation = await self._commit(commit)
            tracked.live = LiveJob(job, generation)
            if job.state is not live.job.state and (parent := parent_of(job)) is not None:
                self.wake(parent)
        self._room.put(job)
        self._advancing.decide()
        self._alarms.set(job.uid, deadlines(job))
        if job.drills:
            self._watchers.lines_written(job)
        if not self._closing:
            tracked.carrying.look()

    async def _commit(self, commit: Commit) -> int:
        generation = await self._ledger.commit(self._epoch, commit)
        self._notices.publish(commit.job.uid)
        return generation

    def _set_alarm(self, uid: JobUid, deadlines: tuple[Deadline, ...]) -> None:
        self._alarms.set(uid, deadlines)

    async def _abandon(self, tracked: _Tracked) -> None:
        """Its record was set aside while it ran: nobody could end it any more, so what runs of it is ended now."""
        job = tracked.live.job
        await self._hands.engine.stop(job.uid, job.attempt, self._hands.grace)
        tracked.carrying.cancel()
        self._forget(job.uid)

    def _carried(self, uid: JobUid) -> None:
        tracked = self._tracked.get(uid)
        if tracked is not None and tracked.live.job.state.is_final:
            self._forget(uid)

    def _forget(self, uid: JobUid) -> None:
        del self._tracked[uid]
        self._alarms.set(uid, ())
        self._watchers.forget(uid)
        self._notices.forget(uid)

    # --- nodes and the engine ---

    def _decide_at(self, at: int) -> None:
        self._advancing.decide_at(at)

    async def _capacity_changed(self) -> None:
        self._room.set_drains(await self._reader.drained_nodes())
        self._room.set_quotas(dict(await self._reader.quotas()))
        self._leave_unfit_nodes()
        self._advancing.decide()

    def _leave_unfit_nodes(self) -> None:
        """Wake every job that has a replica on a node which takes no work."""
        for uid, tracked in self._tracked.items():
            if any(r.node and self._room.unfit(r.node) for r in tracked.live.job.replicas):
                self.wake(uid)

    async def _watch(self) -> None:
        async for seen in self._hands.engine.watch():
            if isinstance(seen, LinesWritten):
                self._notices.publish(seen.job_uid)
                tracked = self._tracked.get(seen.job_uid)
                if tracked is not None and tracked.live.job.drills:
                    self._watchers.lines_written(tracked.live.job)
            elif isinstance(seen, MetricsWritten):
                self._metrics_written(seen.job_uid)
            elif isinstance(seen, NodeChanged):
                self._room.set_node_state(seen.node, seen.state, seen.cause)
                self._leave_unfit_nodes()
                self._advancing.decide()
            else:
                self.report(seen.job_uid, event_of(seen))

    def _metrics_written(self, uid: JobUid) -> None:
        job = self._stored(uid)
        parent = parent_of(job) if job else None
        if parent is not None and not self._closing:
            self._gathering.measured(parent)
