"""The control loop, the only writer of state: wakes a job, applies its events in one guarded commit, and lets
the carrier execute the resulting instructions.

The loop is level-triggered: all actions follow from the stored job, so a restarted service only has to read
the jobs again. It never polls. Requests, engine events, deadlines, scheduling decisions and carriers wake
jobs. Each job has a mailbox with a task of its own, so that its changes never run concurrently, and an alarm
for its earliest deadline. `controller.steps` computes the next stored state. The module is long because all
events of jobs arrive here.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from trainshed.controller.budgets import Budgets
from trainshed.controller.capacity import MAX_INLINE_SIZE
from trainshed.controller.carrier import JobCarrier, Ports
from trainshed.controller.curves import JobCurves
from trainshed.controller.decisions import Decisions
from trainshed.controller.dependencies import Dependents
from trainshed.controller.jobs_of_jobs import DEFAULT_MAX_CHILD_JOBS, JobsOfJobs
from trainshed.controller.leftovers import settle_leftovers, settle_unknown
from trainshed.controller.mailboxes import Alarms, Mailbox, Mailboxes
from trainshed.controller.outbox import OutboxWorker
from trainshed.controller.parents import Parents, ParentStores, reconcile_pipeline
from trainshed.controller.reservations import Reservations
from trainshed.controller.steps import JobSteps, count_step
from trainshed.controller.tuning import TuningReconciler
from trainshed.controller.watching import Watchers
from trainshed.core.capacity import Load, NodeStatus, Preflight, QuotaStatus, Waiting
from trainshed.core.errors import Unavailable
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, Event, NodesGiven, StartDelayed
from trainshed.core.lifecycle.machine import deadlines
from trainshed.core.lifecycle.records import Actor, Job
from trainshed.core.lifecycle.states import AttemptState
from trainshed.core.lifecycle.transition import FailurePolicy
from trainshed.core.names import JobUid
from trainshed.core.pipelines import Pipeline
from trainshed.core.tuning.records import TuningJob
from trainshed.core.units import Nanos
from trainshed.core.usage import Prices, Use, released_use, uses
from trainshed.core.works import Work
from trainshed.engines.port import (
    CapacityChanged,
    KeepsQuarantine,
    LinesWritten,
    MetricsWritten,
    NodeChanged,
    NodesChosen,
    StartWaits,
)
from trainshed.eventloop.background import Crew, in_turns, joined, wait_shielded
from trainshed.scheduler.model import Policy
from trainshed.store.logs.reader import LogReader
from trainshed.store.logs.usage import with_busy_processors
from trainshed.store.notices import Notices
from trainshed.store.port import Commit, LiveJob, NewWork, StaleCommit
from trainshed.store.sqlite.jobs import Intake, Ledger
from trainshed.store.sqlite.reader import Reader
from trainshed.store.sqlite.reservations import PersistentResources
from trainshed.store.steps import Reconciler
from trainshed.telemetry.meters import Meters

log = logging.getLogger(__name__)

_RELEASE_TIMEOUT = 10.0
"""Maximum seconds that a stopping service spends on releasing the slots (positions on nodes) of finished
jobs. A cluster keeps unreleased slots until the next start."""
_METRICS_SPAN = 0.2
"""Seconds for which reports of new measurements are collected, so that a tuning job is processed at most a
few times per second."""
_BLOCK_SIZE = 50
"""Number of jobs that are loaded or processed before other tasks run on the event loop. They take some
milliseconds."""

_STOPS = "The service is stopping. Retry when it is running again."

_LIVE = (AttemptState.STARTING, AttemptState.RUNNING, AttemptState.STOPPING)


class _Tracked(Struct):
    """The control loop's in-memory state of a live job between two events. It can be rebuilt from the
    store."""

    live: LiveJob[Job]
    carrier: JobCarrier


class Controller:
    """The control loop of a service, on its event loop. Also answers the API's questions about capacity
    (`api.calls.services.CapacityView`)."""

    def __init__(
        self,
        *,
        intake: Intake,
        ledger: Ledger,
        reader: Reader,
        logs: LogReader,
        ports: Callable[[Callable[[JobUid, Event], None]], Ports],
        notices: Notices,
        now: Callable[[], int],
        owner: str,
        stores: ParentStores,
        scheduling: Policy,
        failures: FailurePolicy | None = None,
        max_child_jobs: int = DEFAULT_MAX_CHILD_JOBS,
        curves: JobCurves | None = None,
        meters: Meters | None = None,
        outbox: OutboxWorker | None = None,
        prices: Prices | None = None,
        resources: PersistentResources,
        at_once: int = MAX_INLINE_SIZE,
    ) -> None:
        """`ports`: creates the carrier's ports from the function that receives their events. `now`: ns since
        the epoch. `owner`: the name of this service in the ledger. `max_child_jobs`: see `JobsOfJobs`.
        `outbox`: creates the notifications of steps, or None for no notifications. `prices`: None for free
        machines. `at_once`: see `CapacityTracker`."""
        self._intake = intake
        self._ledger = ledger
        self._reader = reader
        self._logs = logs
        self._ports = ports(self.report)
        self._notices = notices
        self._now = now
        self._owner = owner
        self._epoch = 0
        self._decisions = Decisions(
            scheduling,
            now,
            stored=self._find_job,
            report=self.report,
            budgets=Budgets(
                prices or Prices(),
                lambda now: chain(
                    (use for job in self.placed_jobs() for use in self.uses(job, now)),
                    self.reservations.uses(now),
                ),
                () if outbox is None else outbox.marks,
                None if outbox is None else outbox.notify_budgets,
            ),
            at_once=at_once,
        )
        self._capacity = self._decisions.capacity
        self.reservations = self._decisions.reservations = Reservations(
            resources,
            self._capacity,
            notices,
            now=now,
            decide=self._decisions.decide,
            report=self.report,
            cancel=self._cancel_for,
        )
        self._alarms = Alarms(now, lambda uid, deadline: self.report(uid, deadline.event))
        self._tuning = TuningReconciler(stores, self.wake)
        self._parents = Parents(
            stores,
            {TuningJob: self._tuning.reconcile, Pipeline: partial(reconcile_pipeline, stores)},
            commit=self._commit,
            wake=self.wake,
            set_alarm=self._alarms.set,
        )
        self._tracked: dict[JobUid, _Tracked] = {}
        self._jobs_of_jobs = JobsOfJobs(self._find_job, max_child_jobs)
        self._dependents = Dependents(reader, self.report)
        self._steps = JobSteps(
            now,
            failures or FailurePolicy(),
            decisions=self._decisions,
            jobs_of_jobs=self._jobs_of_jobs,
            runtimes=self._ports.runtimes,
            report=self.report,
        )
        self._curves = curves
        self._meters = meters or Meters()
        self._outbox = outbox
        self._mailboxes = Mailboxes(self._apply)
        self._watchers = Watchers(logs, now, self.report)
        self._measured: dict[JobUid, asyncio.TimerHandle] = {}
        self._crew = Crew()
        self._closing = False

    def add_reconcilers(self, reconcilers: Mapping[type[Work], Reconciler]) -> None:
        """Add the reconcilers of an addition. Must be called before `start`."""
        self._parents.add(reconcilers)

    async def start(self) -> None:
        """Become the leader, adopt running programs, and continue with every unfinished job. Raise the errors
        of the ledger and the engine."""
        self._epoch = await self._ledger.acquire(self._owner)
        parents: list[JobUid] = []
        await self.reservations.load()
        # A hundred thousand jobs take seconds, during which signals and shims must be served.
        async for some in in_turns(await self._ledger.load_live(), _BLOCK_SIZE):
            for live in some:
                self._jobs_of_jobs.add(live.job)
                self._dependents.add(live.job)
                if isinstance(live.job, Job):
                    self._track(LiveJob(live.job, live.generation, live.intents))
                    self._capacity.put(live.job)
                else:
                    self._capacity.adopt(live.job)
                    parents.append(live.job.uid)
        await self._ports.engine.start()
        self._capacity.set_nodes(await self._ports.engine.capacity())
        await self._decisions.read_usage(self._reader)
        await self._decisions.read_orders(self._reader)
        await self._dependents.report_earlier_ends()
        # List the jobs in their loaded state. A job that starts later may receive slots for its replicas
        # while the engine lists its allocations.
        adopted = [tracked.live.job for tracked in self._tracked.values()]
        self._crew.keep(
            lambda: settle_leftovers(self._ports.engine, self._find_job, adopted, self.report),
            "cleaning up jobs of earlier services",
        )
        self._crew.keep(self._watch, "receiving events of the engine")
        if self._curves is not None:
            self._curves.start(self._metrics_written)
        self._crew.begin(
            self._start_pending_work(tuple(self._tracked)), "checking the jobs of earlier services"
        )
        for uid in parents:
            self.wake(uid)
        self._decisions.decide()  # Also without jobs: persistent resources may wait for machines.

    async def _start_pending_work(self, uids: Sequence[JobUid]) -> None:
        """Start the pending work of the jobs in blocks, so that requests are served in between."""
        async for some in in_turns(uids, _BLOCK_SIZE):
            for uid in some:
                if uid in self._tracked:
                    self._mailboxes.process(uid)

    async def close(self) -> None:
        """Stop making decisions. Commits in progress are finished, and running programs continue."""
        self._closing = True
        self._decisions.close(Unavailable(_STOPS))
        await self.reservations.close()
        busy = self._mailboxes.close()
        self._tuning.close()
        self._alarms.close()
        for timer in self._measured.values():
            timer.cancel()
        self._watchers.close()
        self._crew.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        tidying = self._carrier_tasks(final=True)
        if tidying:
            # Finished jobs release the slots (positions on nodes) of their replicas. The next start of the
            # service releases the remaining slots.
            await asyncio.wait(tidying, timeout=_RELEASE_TIMEOUT)
        carrying = self._carrier_tasks()
        for tracked in self._tracked.values():
            tracked.carrier.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)
        if self._curves is not None:
            await self._curves.close()
        await self._ports.engine.close()

    def running_jobs(self) -> tuple[Job, ...]:
        """Return the jobs that have, or may have, processes now."""
        jobs = (tracked.live.job for tracked in self._tracked.values())
        return tuple(job for job in jobs if job.phase in _LIVE)

    def placed_jobs(self) -> tuple[Job, ...]:
        """Return the jobs that have nodes now."""
        jobs = (tracked.live.job for tracked in self._tracked.values())
        return tuple(job for job in jobs if job.placed)

    def uses(self, job: Job, until: Nanos) -> tuple[Use, ...]:
        """Return the usage of a job's newest attempt until a given time."""
        return uses(job, until, self._capacity.nodes)

    def runs(self, uid: JobUid, attempt: int) -> bool:
        """Return whether the attempt of a job has, or may have, processes now."""
        job = self._find_job(uid)
        return job is not None and job.attempt == attempt and job.phase in _LIVE

    def wake(self, uid: JobUid) -> None:
        """Wake a job because it is new, or because a request has appended an intent."""
        self._mailboxes.wake(uid)

    async def create(self, *made: NewWork) -> None:
        """Store new jobs, tuning jobs and pipelines, all or none, and continue with them. Raise the errors of
        `Intake.create`, and Unavailable.

        A single job that fits at once is stored as admitted (docs/adr/0083). If the caller is cancelled, all
        are stored anyway. Raises FailedPrecondition and ResourceExhausted like `JobsOfJobs.admit` and
        `CapacityTracker.admit`.
        """
        await wait_shielded(joined(self._create(made)))

    def report(self, uid: JobUid, event: Event) -> None:
        """Receive an event of a job."""
        if isinstance(event, StartDelayed):
            self._capacity.set_delay(uid, event.attempt, event.delay)
            self._notices.publish(uid)
        self._mailboxes.add(uid, event)

    # --- the API's questions about capacity ---

    def explain_wait(self, uid: JobUid) -> Waiting | None:
        return self._capacity.explain_wait(uid, self._now())

    def position(self, uid: JobUid) -> int:
        return self._capacity.position(uid)

    async def preflight(self, job: Job) -> Preflight:
        self._capacity.require_admissible(job)
        return await self._capacity.preflight(job, self._now())

    def nodes(self) -> tuple[NodeStatus, ...]:
        return self._capacity.node_statuses()

    def accelerators(self) -> tuple[str, ...]:
        """Return the types of the nodes' accelerators, the most frequent first."""
        return self._capacity.accelerators

    def quotas(self, project_id: str) -> tuple[QuotaStatus, ...]:
        return self._capacity.quota_statuses(self._now(), project_id)

    async def _cancel_for(self, uid: JobUid, email: str) -> None:
        """Cancel a job on behalf of a user. Raise FailedPrecondition if the job has finished, or NotFound if
        it was deleted."""
        if (job := self._find_job(uid)) is not None:
            cancel = CancelRequested(CancelCause.USER, self._now(), Actor(email))
            await self._intake.request_cancel(job.name, cancel)
            self.wake(uid)

    def load(self) -> Load:
        tracked, now = (tracked.live.job for tracked in self._tracked.values()), self._now()
        jobs = [job for job in tracked if not job.state.is_final]
        return Load(
            Counter((job.name.api, job.state.value) for job in jobs),
            self._capacity.queue_length,
            self._capacity.quota_statuses(now),
            Counter((job.name.project_id, job.state.value) for job in jobs),
            self._capacity.budgets.of_projects(now),
        )

    async def readmit(self, node: str) -> None:
        """End the engine's quarantine of a node. Raise Unavailable if the engine cannot do this now."""
        engine = self._ports.engine
        if isinstance(engine, KeepsQuarantine):
            await engine.readmit(node)

    async def capacity_changed(self) -> None:
        await self._decisions.read_orders(self._reader)
        self._leave_unfit_nodes()
        self._decisions.decide()

    # --- new jobs, tuning jobs and pipelines ---

    async def _create(self, made: Sequence[NewWork]) -> None:
        counted: list[JobUid] = []
        try:
            for new in made:
                self._capacity.admit(new.job)
                self._dependents.add(new.job)
            for job in (new.job for new in made):
                if job.creating_job is not None and self._jobs_of_jobs.admit(job.uid, job.creating_job):
                    counted.append(job.uid)
            await self._store_new(made)
        except BaseException:
            for new in made:
                self._capacity.forget_arrival(new.job.uid)
                self._dependents.remove(new.job)
            for uid in counted:
                self._jobs_of_jobs.remove(uid)
            raise

    async def _store_new(self, made: Sequence[NewWork]) -> None:
        job = made[0].job if len(made) == 1 else None
        # If a job with this uid exists, the store rejects the new job, and the existing job continues.
        if isinstance(job, Job) and job.uid not in self._tracked and not self._closing:
            await self._create_job(job, made[0])
            return
        await self._intake.create(*made)
        for new in made:
            if isinstance(new.job, Job) and not self._closing:
                self._track(LiveJob(new.job, generation=1))
                self._mailboxes.process(new.job.uid)
            else:
                self.wake(new.job.uid)

    async def _create_job(self, job: Job, made: NewWork) -> None:
        """Store a single job, as admitted if it fits at once. Decisions about other jobs are reported only
        after this job is stored, because its name may already exist."""
        uid = job.uid
        self._mailboxes.hold(uid)
        tracked = self._track(LiveJob(job, generation=0))
        self._capacity.put(job)
        decided = self._decisions.new_decisions(job)
        own = [event for about_whom, event in decided if about_whom == uid]
        admitted = self._steps.admit(made, own)
        try:
            if admitted is None:
                await self._intake.create(made)
            else:
                await self._ledger.create_admitted(self._epoch, admitted)
        except Exception as failure:
            self._mailboxes.drop(uid)
            self._forget(uid)
            self._capacity.forget(uid)
            # Undo the decisions about other jobs, which may depend on the capacity of the job that was not
            # stored.
            for other, _ in decided:
                if (stored := self._find_job(other)) is not None:
                    self._capacity.put(stored)
            self._decisions.decide()
            if isinstance(failure, StaleCommit):
                raise Unavailable(f"The job was not stored: {failure}. Submit the job again.") from failure
            raise
        for about_whom, event in decided:
            if admitted is None or about_whom != uid:
                self.report(about_whom, event)
        if admitted is None:
            tracked.live = LiveJob(job, generation=1)
            if self._steps.is_queue_long and not job.is_held:
                # In a long queue, the reason for the wait is not added to the timeline. No further step is
                # stored now.
                self._act_on_state(tracked)
            else:
                self._mailboxes.process(uid)
        else:
            assert isinstance(admitted.job, Job)
            tracked.live = LiveJob(admitted.job, generation=1)
            self._notices.publish_soon(uid)
            count_step(self._meters, job, admitted.job, self._now())
            self._act_on_state(tracked)
        self._mailboxes.release(uid)

    # --- one job's mailbox ---

    def _track(self, live: LiveJob[Job]) -> _Tracked:
        uid = live.job.uid
        carrier = JobCarrier(
            self._ports, lambda: self._tracked[uid].live.job, lambda: self._forget_if_finished(uid)
        )
        self._tracked[uid] = _Tracked(live, carrier)
        return self._tracked[uid]

    def _find_job(self, uid: JobUid) -> Job | None:
        tracked = self._tracked.get(uid)
        return tracked.live.job if tracked else None

    def _carrier_tasks(self, *, final: bool = False) -> list[asyncio.Task[None]]:
        """Return the tasks that execute instructions, of all jobs or of finished jobs."""
        return [
            tracked.carrier.task
            for tracked in self._tracked.values()
            if tracked.carrier.task is not None and (tracked.live.job.state.is_final or not final)
        ]

    async def _apply(self, uid: JobUid, mailbox: Mailbox) -> None:
        tracked = self._tracked.get(uid)
        if mailbox.reload or tracked is None:
            live = await self._ledger.load(uid)
            if live is None:
                self._capacity.forget(uid)
                self._jobs_of_jobs.remove(uid)
                if tracked is not None and not tracked.live.job.state.is_final:
                    await self._abandon(tracked)
                await settle_unknown(self._ports.engine, uid, mailbox.events)
                return
            if not isinstance(live.job, Job):
                ends = await self._dependents.ends_before(live.job)
                cancels = self._jobs_of_jobs.cancels(live.job, self._now())
                await self._parents.apply(live, (*mailbox.events, *ends, *cancels))
                return
            loaded = LiveJob(live.job, live.generation, live.intents)
            if tracked is None:
                tracked = self._track(loaded)
            tracked.live = loaded
        ends = await self._dependents.ends_before(tracked.live.job)
        await self._advance(tracked, [*mailbox.events, *ends])

    async def _advance(self, tracked: _Tracked, events: list[Event]) -> None:
        """Commit the results of the events. Then schedule the job, set its alarms, and execute its
        instructions."""
        live = tracked.live
        job, entries = self._steps.advance(live, events)
        if job.state.is_final and self._curves is not None:
            self._curves.follow(live.job)
            await self._curves.finish(job)
        if job != live.job or live.intents or entries:
            consumed = live.intents[-1].seq if live.intents else 0
            ended = released_use(live.job, job, self._capacity.nodes)
            used = await self._measured_uses(live.job, ended)
            commit = Commit(job, live.generation, entries, consumed, uses=used)
            generation = await self._commit(commit)
            tracked.live = LiveJob(job, generation)
            self._capacity.count_usage(used)
            count_step(self._meters, live.job, job, self._now())
            if job.state is not live.job.state and job.parent is not None:
                self.wake(job.parent.uid)
            if job.state.is_final:
                self._wake_made(job.uid)
        self._act_on_state(tracked)

    async def _measured_uses(self, job: Job, used: tuple[Use, ...]) -> tuple[Use, ...]:
        """Return the usage of an attempt, including the number of busy processors."""
        if not used:
            return ()
        try:
            usages = await self._logs.usage(job.uid, job.attempt)
        except OSError as failure:
            log.warning("usage of job %s is unknown: %s", job.uid, failure)
            return used
        return tuple(with_busy_processors(use, usages) for use in used)

    def _wake_made(self, uid: JobUid) -> None:
        """Wake the jobs, tuning jobs and pipelines that programs of a finished job have created. Most of them
        end together with the job."""
        for made in self._jobs_of_jobs.works_of(uid):
            self.wake(made)

    def _act_on_state(self, tracked: _Tracked) -> None:
        """Schedule the stored job, set its alarms, and execute its instructions."""
        job = tracked.live.job
        if self._curves is not None:
            self._curves.follow(job)
        self._capacity.put(job)
        self._decisions.decide()
        self._alarms.set(job.uid, deadlines(job))
        if job.drills:
            self._watchers.lines_written(job)
        if not self._closing or job.state.is_final:
            tracked.carrier.update()

    async def _commit(self, commit: Commit) -> int:
        if self._outbox is not None:
            commit = replace(commit, notifications=self._outbox.notifications_of(commit))
        generation = await self._ledger.commit(self._epoch, commit)
        if self._outbox is not None and commit.notifications:
            self._outbox.wake()
        if commit.job.state.is_final:
            self._capacity.forget_arrival(commit.job.uid)
            self._jobs_of_jobs.remove(commit.job.uid)
            self._dependents.remove(commit.job)
            self._dependents.report_end(commit.job.uid, commit.job.state)
            self._notices.publish(commit.job.uid)
        else:
            self._notices.publish_soon(commit.job.uid)
        return generation

    async def _abandon(self, tracked: _Tracked) -> None:
        """Stop the programs of a job whose record is unreadable. Nothing else could end them later."""
        job = tracked.live.job
        await self._ports.engine.stop(job.uid, job.attempt, self._ports.grace)
        if self._curves is not None:
            await self._curves.finish(job)
        tracked.carrier.cancel()
        self._forget(job.uid)
        self._wake_made(job.uid)

    def _forget_if_finished(self, uid: JobUid) -> None:
        tracked = self._tracked.get(uid)
        if tracked is not None and tracked.live.job.state.is_final:
            self._forget(uid)

    def _forget(self, uid: JobUid) -> None:
        del self._tracked[uid]
        self._alarms.set(uid, ())
        self._watchers.forget(uid)

    # --- nodes and the engine ---

    def _leave_unfit_nodes(self) -> None:
        """Wake every job that has a replica on an unfit node."""
        for uid in self._capacity.jobs_on_unfit_nodes():
            if uid in self._tracked:
                self.wake(uid)

    async def _watch(self) -> None:
        async for seen in self._ports.engine.watch():
            if isinstance(seen, LinesWritten):
                self._notices.publish(seen.job_uid)
                tracked = self._tracked.get(seen.job_uid)
                if tracked is not None and tracked.live.job.drills:
                    self._watchers.lines_written(tracked.live.job)
            elif isinstance(seen, MetricsWritten):
                self._metrics_written(seen.job_uid)
            elif isinstance(seen, NodeChanged):
                self._capacity.set_node_state(seen.node, seen.state, seen.cause)
                self._leave_unfit_nodes()
                self._decisions.decide()
            elif isinstance(seen, CapacityChanged):
                self._capacity.set_nodes(seen.nodes)
                self._decisions.decide()
            elif isinstance(seen, StartWaits) and seen.delay is not None:
                self.report(seen.job_uid, StartDelayed(seen.attempt, seen.delay))
            elif isinstance(seen, StartWaits):
                self._capacity.set_delay(seen.job_uid, seen.attempt, None)
                self._notices.publish(seen.job_uid)
            elif isinstance(seen, NodesChosen):
                self.report(seen.job_uid, NodesGiven(seen.attempt, seen.nodes))
            else:
                self.report(seen.job_uid, seen.event)

    def _metrics_written(self, uid: JobUid) -> None:
        """Record that a trial has reported a measurement. Its tuning job is woken once for all measurements
        of a short time."""
        job = self._find_job(uid)
        parent = job.parent.uid if job and job.parent else None
        if parent is not None and parent not in self._measured and not self._closing:
            loop = asyncio.get_running_loop()
            self._measured[parent] = loop.call_later(_METRICS_SPAN, self._wake_measured, parent)

    def _wake_measured(self, parent: JobUid) -> None:
        del self._measured[parent]
        self.wake(parent)
