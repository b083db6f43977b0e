"""Reconciles tuning jobs and pipelines, which run through other jobs, each time one of them is woken. The
next step follows from their stored records and from those of their jobs.

Reconcilers also cache learning curves and the advisor's results in memory. The caches may be lost at any
time. The loop that calls `apply` processes one tuning job or pipeline at a time. This module contains the
reconciler of pipelines, and `tuning` contains the reconciler of tuning jobs.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct

from trainshed.core import pipelines
from trainshed.core.curves import Point
from trainshed.core.errors import FailedPrecondition, NotFound, Unavailable
from trainshed.core.lifecycle import timeline
from trainshed.core.lifecycle.dependencies import end_dependency
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, DependencyEnded, Event
from trainshed.core.lifecycle.machine import Deadline, give_up_parent
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState, JobTrigger
from trainshed.core.lifecycle.transition import WorkTransition
from trainshed.core.names import JobUid
from trainshed.core.pipeline_jobs import UNSERVED, PipelineJob
from trainshed.core.pipelines import ModelVersion, Pipeline
from trainshed.core.study.records import Measurement, Trial
from trainshed.core.tuning.machine import abandon, give_up
from trainshed.core.tuning.records import SeenSummaries, TuningJob
from trainshed.core.units import Nanos
from trainshed.core.works import Work
from trainshed.store.port import Commit, LiveJob, NewWork, StaleCommit
from trainshed.store.sqlite.jobs import Intake
from trainshed.store.sqlite.models import Models
from trainshed.store.sqlite.reader import Reader
from trainshed.store.sqlite.studies import Studies
from trainshed.store.steps import Next, Reconciler, intents, last_intent
from trainshed.studies.advisor_client import ProcessAdvisor
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

MAX_FAILURES = 5
"""Number of successive failures, one second apart, after which a tuning job or pipeline is ended with an
error."""


class ParentStores(Struct, frozen=True):
    """The stores and functions that reconcilers use. `new_uid`: returns a new uid, ascending with time."""

    intake: Intake
    reader: Reader
    studies: Studies
    models: Models
    advisor: ProcessAdvisor
    #: Returns the measurements that a trial's job has reported. The second argument is the time from which
    #: their elapsed times count. Blocks.
    reported_measurements: Callable[[JobUid, Nanos], tuple[Measurement, ...]]
    #: Returns the time of the last write below a URI, 0 if nothing exists there, or None if unknown. Blocks.
    last_written: Callable[[str], Nanos | None]
    #: Returns a limited number of lines that a job's primary printed, each with its time (ns since the
    #: epoch).
    printed_lines: Callable[[Job], Awaitable[Sequence[tuple[Nanos, str]]]]
    #: Returns the tags that a job has logged, and the points of the tag in the second argument. Returns None
    #: for a job without a log directory.
    logged_points: Callable[[Job, str], Awaitable[tuple[SeenSummaries, Sequence[Point]] | None]]
    now: Callable[[], int]
    new_uid: Callable[[], JobUid]

    async def work(self, uid: JobUid) -> Work | None:
        """Return the stored job, tuning job or pipeline, or None if it was deleted or is unreadable."""
        with contextlib.suppress(NotFound, FailedPrecondition):
            work, _ = await self.reader.job_by_uid(uid)
            return work
        return None


class Parents:
    """Reconciles tuning jobs and pipelines whenever one of their jobs has changed."""

    def __init__(
        self,
        stores: ParentStores,
        reconcilers: dict[type[Work], Reconciler],
        *,
        commit: Callable[[Commit], Awaitable[int]],
        wake: Callable[[JobUid], None],
        set_alarm: Callable[[JobUid, tuple[Deadline, ...]], None],
    ) -> None:
        self._stores = stores
        self._reconcilers = reconcilers
        #: Stores a step and notifies waiting followers.
        self._commit = commit
        #: Requests that a job, tuning job or pipeline is loaded and processed.
        self._wake = wake
        #: Sets the alarms of a tuning job or pipeline, see `Alarms.set`.
        self._set_alarm = set_alarm
        #: Number of successive failures to reconcile each tuning job or pipeline.
        self._failures: dict[JobUid, int] = {}

    def add(self, reconcilers: Mapping[type[Work], Reconciler]) -> None:
        """Add the reconcilers of an addition, before the first work is processed."""
        self._reconcilers |= reconcilers

    async def apply(self, live: LiveJob[Work], events: Sequence[Event]) -> None:
        """Reconcile a tuning job or pipeline, store the result, and wake and cancel its jobs. A pipeline job
        stays unchanged while its addition is not installed. Raises StaleCommit, and the errors of the
        reconciler."""
        if type(live.job) not in self._reconcilers:
            about(log, live.job.uid).warning("%s waits: %s", live.job.name, UNSERVED.message)
            return
        reconciled = await self._reconcile(live, events)
        made: tuple[NewWork, ...] = ()
        if reconciled.commit is not None:
            await self._commit(reconciled.commit)
            made = reconciled.commit.made
        self._set_alarm(reconciled.job.uid, reconciled.deadlines)
        for new in made:
            self._wake(new.job.uid)
        if live.job.is_held and not (reconciled.job.is_held or reconciled.job.state.is_final):
            self._wake(live.job.uid)
        parent = reconciled.job.parent
        if parent is not None and reconciled.job.state is not live.job.state:
            self._wake(parent.uid)
        # Cancels come last because they may fail. In this case, they are repeated, without another change of
        # the state.
        for uid, cause in reconciled.cancel:
            await self._cancel(uid, cause)

    async def _reconcile(self, live: LiveJob[Work], events: Sequence[Event]) -> Next:
        """Reconcile a tuning job or pipeline. After repeated failures, its jobs are cancelled, and it ends
        with the cause of the failure."""
        uid = live.job.uid
        if live.job.is_held and not intents(live, events):
            return end_dependencies(live, events, self._stores.now())
        try:
            reconciled = await self._reconcilers[type(live.job)](live, events)
        except (StaleCommit, Unavailable, OSError):
            raise
        except Exception as failure:
            failures = self._failures[uid] = self._failures.get(uid, 0) + 1
            if failures < MAX_FAILURES:
                raise
            about(log, uid).exception("reconciling failed %d times; ending the job", failures)
            reconciled = await self._given_up(live, str(failure) or repr(failure))
        self._failures.pop(uid, None)
        return reconciled

    async def _given_up(self, live: LiveJob[Work], cause: str) -> Next:
        work, now = live.job, self._stores.now()
        trials: list[Trial] = []
        match work:
            case TuningJob():
                jobs = [running.job for running in work.running]
                for running in work.running:
                    # Skip a trial whose record is unreadable. This record may be the cause of the failures.
                    with contextlib.suppress(Exception):
                        trials.append(await self._stores.studies.trial(work.study, running.number))
                ended, entries = give_up(work, cause, now)
            case Pipeline():
                jobs = [work.job]
                ended, entries = give_up_parent(work, "Pipeline", cause, now)
            case PipelineJob():
                states = await self._stores.reader.child_states(work.uid)
                jobs = [child for child, state in states.items() if not state.is_final]
                ended, entries = give_up_parent(work, "Pipeline job", cause, now)
            case _:
                raise TypeError(f"{work.name} is neither a tuning job nor a training pipeline")
        # The jobs are cancelled first, because the loop never processes a finished tuning job or pipeline
        # again.
        for uid in jobs:
            await self._cancel(uid, CancelCause.PARENT)
        over = abandon(trials, cause, now)
        return Next(ended, Commit(ended, live.generation, entries, last_intent(live), trials=over))

    async def _cancel(self, uid: JobUid, cause: CancelCause) -> None:
        work = await self._stores.work(uid)
        if work is None or work.state.is_final or work.state is JobState.CANCELLING:
            return
        cancel = CancelRequested(cause, self._stores.now())
        # Ignore the error if the job has just ended or was deleted. The end of a job wakes the tuning job or
        # pipeline that runs it.
        with contextlib.suppress(FailedPrecondition, NotFound):
            await self._stores.intake.request_cancel(work.name, cancel)
            self._wake(uid)


def end_dependencies(live: LiveJob[Work], events: Sequence[Event], now: Nanos) -> Next:
    """Return the next step of a tuning job or pipeline job that waits for other works and has not created a
    job yet. A cancel is applied by its reconciler instead."""
    transition = WorkTransition(live.job, now)
    for event in events:
        if isinstance(event, DependencyEnded) and (outcome := end_dependency(transition, event)):
            transition.fire_job(JobTrigger.FAILED)
            transition.change(outcome=outcome, error=outcome.error, ended=now)
            transition.record(timeline.end(outcome, now))
    step = transition.step()
    changed = step.job is not live.job
    commit = Commit(step.job, live.generation, step.timeline) if changed else None
    return Next(step.job, commit)


async def reconcile_pipeline(stores: ParentStores, live: LiveJob[Work], events: Sequence[Event]) -> Next:
    """Return the next step of a training pipeline."""
    pipeline = live.job
    assert isinstance(pipeline, Pipeline)
    transition = WorkTransition(pipeline, stores.now())
    for cancel_request in intents(live, events):
        pipelines.cancel(transition, cancel_request)
    backing = await stores.work(pipeline.job)
    assert not isinstance(backing, Pipeline | PipelineJob)
    pipelines.observe(transition, backing)
    model = None
    if backing is not None and backing.state is JobState.SUCCEEDED:
        model = await _end_successful(stores, transition, backing)
    step = transition.step()
    pipeline, commit = step.job, None
    if pipeline != live.job or live.intents:
        commit = Commit(pipeline, live.generation, step.timeline, last_intent(live), model=model)
    cancels = pipeline.outcome is not None and not pipeline.state.is_final
    cancel = ((pipeline.job, CancelCause.PARENT),) if cancels else ()
    return Next(pipeline, commit, cancel)


async def _end_successful(
    stores: ParentStores, transition: WorkTransition[Pipeline], backing: Job | TuningJob
) -> ModelVersion | None:
    """End a pipeline whose job has succeeded. Return its model, or None if it creates none."""
    pipeline, version = transition.job, None
    best, best_job = 0, JobUid(0)
    if isinstance(backing, TuningJob):
        best = backing.best
        best_job = (await stores.studies.trial(backing.study, best)).job
    if (draft := pipeline.spec.model) is not None:
        uri, name = pipelines.artifacts(pipeline, best), pipelines.model_name(pipeline, draft)
        is_there = await asyncio.to_thread(stores.last_written, uri) != 0
        try:
            versions = await stores.models.versions(name)
        except NotFound:
            versions = ()
        if fault := pipelines.model_fault(draft, name, uri, versions, is_there=is_there):
            pipelines.fail(transition, fault)
            return None
        version = pipelines.model_version(pipeline, uri, versions, transition.now)
    pipelines.succeed(transition, version, best_job)
    return version
