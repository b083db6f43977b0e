"""Reconciles pipeline jobs: reads the states of the tasks' jobs, lets the state machine decide, and starts
tasks.

The tasks of unfinished pipeline jobs are cached in memory with the generation of their last commit. The cache
may be lost at any time: the stored tasks and jobs determine the next step.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.errors import FailedPrecondition, NotFound, RequestError, Unavailable
from trainshed.core.failure.messages import CANCELLED, INVALID_ARGUMENT
from trainshed.core.job import JobError
from trainshed.core.lifecycle import timeline
from trainshed.core.lifecycle.events import CancelCause, Event, PauseOver, TimelineEntry
from trainshed.core.lifecycle.machine import Deadline
from trainshed.core.lifecycle.states import JobState, JobTrigger
from trainshed.core.lifecycle.transition import WorkTransition
from trainshed.core.names import JobUid
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.units import Nanos
from trainshed.core.works import Work
from trainshed.store.port import Commit, LiveJob, NewWork, Write
from trainshed.store.sqlite.reader import Reader
from trainshed.store.steps import Next, intents, last_intent
from trainshed_pipelines.runs.machine import Circumstances, JobReport, Step, first_failure
from trainshed_pipelines.runs.names import facts_of
from trainshed_pipelines.runs.records import ROOT, TaskKind, TaskRun, TaskState, Values
from trainshed_pipelines.runs.table import Runs, write_cached, write_task
from trainshed_pipelines.runs.tree import Tree
from trainshed_pipelines.template.structures import Component, Template

_MAX_CACHED: Final = 64
"""Maximum number of pipeline jobs whose tasks are kept in memory."""


class Started(Struct, frozen=True):
    """The result of starting a task: the job to store, or the outputs of a task that has ended at once."""

    work: NewWork | None = None
    outputs: Values = Values()
    fingerprint: str = ""
    #: The task whose outputs are used, see `TaskRun.cached_from`. "" = the task itself has run.
    cached_from: str = ""


class Tasks(Protocol):
    """Carries out the tasks of pipeline jobs."""

    def kind_of(self, component: Component) -> TaskKind:
        """Return what a task of the component does."""
        ...

    async def start(self, run: PipelineJob, tree: Tree, task: TaskRun) -> Started:
        """Start a task. The caller stores its job. Raises RequestError and ValueError if its program, its
        inputs or its resources are invalid."""
        ...

    async def outputs(self, run: PipelineJob, tree: Tree, task: TaskRun, work: Work) -> Values:
        """Return the outputs of a task whose job `work` succeeded. Raises ValueError if they are missing or
        invalid, and Unavailable."""
        ...


class Run(Struct, frozen=True):
    """The unchanging parts of a pipeline job."""

    template: Template
    inputs: Values
    fails_fast: bool
    #: The successful tasks of the pipeline job that this one repeats, by path.
    earlier: Mapping[str, TaskRun] = {}


Observe = Callable[[PipelineJob, Tree, Sequence[TaskRun]], Awaitable[None]]
"""Called with the changed tasks before a step is stored: records them in the metadata store. It may change
these tasks in the tree."""


class _Loaded(Struct):
    """A pipeline job in memory."""

    run: Run
    tree: Tree
    #: The generation of the last commit.
    generation: int


class PipelineJobReconciler:
    """The reconciler of pipeline jobs (`store.steps.Reconciler`).

    `load_run`: returns the unchanging parts of a stored pipeline job. `now`: returns the time, in ns since
    the epoch.
    """

    def __init__(
        self,
        reader: Reader,
        runs: Runs,
        tasks: Tasks,
        load_run: Callable[[PipelineJob], Awaitable[Run]],
        *,
        now: Callable[[], int],
        observe: Observe | None = None,
    ) -> None:
        self._reader = reader
        self._now = now
        self._runs = runs
        self._tasks = tasks
        self._load_run = load_run
        self._observe = observe
        self._cache: OrderedDict[JobUid, _Loaded] = OrderedDict()

    async def __call__(self, live: LiveJob[Work], events: Sequence[Event]) -> Next:
        """Return the next step of a pipeline job. Raises Unavailable, and the errors of the store."""
        job = live.job
        assert isinstance(job, PipelineJob)
        now = Nanos(self._now())
        loaded, is_fresh = await self._load(job, live.generation)
        tree, transition = loaded.tree, WorkTransition(job, now)
        circumstances = Circumstances(
            facts_of(job),
            fails_fast=loaded.run.fails_fast,
            is_cancelling=job.outcome is not None,
            kind_of=self._tasks.kind_of,
        )
        step = Step(tree, circumstances, now)
        if not len(tree):
            transition.fire_job(JobTrigger.ADMITTED)
            transition.fire_job(JobTrigger.ALL_UP)
            transition.change(started=now)
            step.begin(loaded.run.inputs)
        elif is_fresh or any(isinstance(event, PauseOver) for event in events):
            step.examine_all()
        await self._read_jobs(job, step, everything=is_fresh)
        for cancel in intents(live, events):
            if transition.job.outcome is None and not transition.job.state.is_final:
                transition.cancel(cancel, f"The pipeline job {timeline.cancelled_by(cancel)}")
        cancels: tuple[JobUid, ...] = ()
        if transition.job.outcome is not None:
            cancels = step.cancel()
        made = await self._start_tasks(transition.job, step)
        changes = tree.take_changes()
        if changes and self._observe is not None:
            await self._observe(transition.job, tree, changes)
            observed = {task.number: task for task in tree.take_changes()}
            changes = tuple(observed.get(task.number, task) for task in changes)
        transition.record(*_entries(tree, changes, now))
        self._end(transition, tree)
        commit = None
        if changes or live.intents or transition.job != job:
            transition.change(steps=job.steps + 1, counts=tree.counts)
            done = transition.step()
            commit = Commit(
                done.job,
                live.generation,
                done.timeline,
                last_intent(live),
                made=made,
                writes=self._writes(done.job, loaded.run.template, changes, now),
            )
            loaded.generation = live.generation + 1
        if not transition.job.state.is_final:
            self._keep(job.uid, loaded)
        deadline = step.next_deadline()
        return Next(
            transition.job,
            commit,
            tuple((uid, CancelCause.PARENT) for uid in cancels),
            () if deadline is None else (Deadline(deadline, PauseOver(deadline)),),
        )

    async def _load(self, job: PipelineJob, generation: int) -> tuple[_Loaded, bool]:
        """Return a pipeline job, and whether its tasks were read from the store."""
        loaded = self._cache.pop(job.uid, None)
        if loaded is not None and loaded.generation == generation:
            return loaded, False
        run = loaded.run if loaded is not None else await self._load_run(job)
        tasks = await self._runs.tasks(job.uid)
        return _Loaded(run, Tree(run.template, tasks, run.earlier), generation), True

    def _keep(self, uid: JobUid, loaded: _Loaded) -> None:
        self._cache[uid] = loaded
        if len(self._cache) > _MAX_CACHED:
            self._cache.popitem(last=False)

    async def _read_jobs(self, run: PipelineJob, step: Step, *, everything: bool) -> None:
        """Report the changed states of the tasks' jobs to the state machine. `everything`: read all jobs of
        unfinished tasks, to detect unreadable records."""
        tree = step.tree
        states = await self._reader.child_states(run.uid)
        for uid in tuple(tree.jobs()):
            task, state = tree.task_of_job(uid), states.get(uid)
            assert task is not None, "the job of an unfinished task"
            if state is None:
                step.lose(task)
            elif (
                everything
                or state.is_final
                or (state is JobState.RUNNING and task.state is TaskState.PENDING)
            ):
                await self._read_job(run, step, task)

    async def _read_job(self, run: PipelineJob, step: Step, task: TaskRun) -> None:
        try:
            work, _ = await self._reader.job_by_uid(task.job)
        except (NotFound, FailedPrecondition):  # It was deleted, or is unreadable.
            step.lose(task)
            return
        outputs, fault = None, ""
        if work.state is JobState.SUCCEEDED:
            try:
                outputs = await self._tasks.outputs(run, step.tree, task, work)
            except ValueError as wrong:
                fault = str(wrong)
        report = JobReport(work.state, work.started, work.ended, work.error, outputs, fault)
        step.report(task, report)

    async def _start_tasks(self, run: PipelineJob, step: Step) -> tuple[NewWork, ...]:
        """Start all tasks that can start, and return their jobs."""
        made: list[NewWork] = []
        # In a thread, because conditions over large inputs take long.
        while ready := await asyncio.to_thread(step.settle):
            for task in ready:
                try:
                    started = await self._tasks.start(run, step.tree, task)
                except Unavailable:
                    raise
                except (RequestError, ValueError) as fault:
                    step.fail(task.number, JobError(INVALID_ARGUMENT, str(fault), cause="start"))
                    continue
                if started.work is not None:
                    made.append(started.work)
                    job = started.work.job
                    facts = {"fingerprint": started.fingerprint}
                    step.submit(task.number, job.uid, collection=job.name.collection, **facts)
                elif started.cached_from:
                    step.use_cached(
                        task.number, started.outputs, started.cached_from, fingerprint=started.fingerprint
                    )
                else:
                    step.finish(task.number, started.outputs, fingerprint=started.fingerprint)
                # Building hundreds of jobs takes long enough to delay requests.
                await asyncio.sleep(0)
        return tuple(made)

    def _end(self, transition: WorkTransition[PipelineJob], tree: Tree) -> None:
        """End the pipeline job if its root task has ended."""
        root, run = tree[ROOT], transition.job
        if not root.state.is_final or run.state.is_final:
            return
        at = max(transition.now, run.updated)
        if root.state is TaskState.SUCCEEDED:
            transition.fire_job(JobTrigger.SUCCEEDED)
            transition.change(ended=at)
            text = "The pipeline job succeeded."
            transition.record(TimelineEntry(transition.now, "succeeded", text))
            return
        if run.outcome is not None:
            error, trigger = run.outcome.error, JobTrigger.CANCELLED
        else:
            error, trigger = _failure(tree), JobTrigger.FAILED
        transition.fire_job(trigger)
        transition.change(error=error, ended=at)
        message = error.message if error else "The pipeline job has ended."
        kind = transition.job.state.value.lower()
        transition.record(TimelineEntry(transition.now, kind, message))

    def _writes(
        self, run: PipelineJob, template: Template, changes: Sequence[TaskRun], now: Nanos
    ) -> tuple[Write, ...]:
        writes = [write_task(run.uid, task) for task in changes]
        writes += [
            write_cached(run.name, template.name, task, now)
            for task in changes
            if task.state is TaskState.SUCCEEDED and task.fingerprint
        ]
        return tuple(writes)


def _failure(tree: Tree) -> JobError:
    """Return the error of a failed pipeline job: that of the task that failed first, with its path."""
    task = first_failure(tree)
    error = task.error if task is not None else tree[ROOT].error
    if task is None or error is None:
        return error or JobError(CANCELLED, "The pipeline job has ended.")
    job = f", job {task.job}" if task.job else ""
    place = f"The task {tree.path(task)!r} (component {task.component}{job})"
    text = f"{place} failed: {error.message}"
    return replace(error, message=text, reason=None)


def _entries(tree: Tree, changes: Sequence[TaskRun], now: Nanos) -> list[TimelineEntry]:
    """Return the timeline entries for tasks that failed, are retried, or were cancelled."""
    entries: list[TimelineEntry] = []
    for task in changes:
        if task.kind in (TaskKind.DAG, TaskKind.LOOP) or task.error is None:
            continue
        path, details = tree.path(task), {"task": task.number}
        if task.state is TaskState.FAILED:
            text = f"The task {path!r} failed: {task.error.message}"
            entries.append(TimelineEntry(now, "task_failed", text, details))
        elif task.failed_jobs and (task.state is TaskState.WAITING or task.not_before == now):
            # A task whose pause is 0 is pending already.
            attempt = len(task.failed_jobs) + 1
            text = f"The task {path!r} is retried (attempt {attempt}): {task.error.message}"
            entries.append(TimelineEntry(now, "task_retried", text, details))
        elif task.state is TaskState.CANCELLED:
            text = f"The task {path!r} was cancelled: {task.error.message}"
            entries.append(TimelineEntry(now, "task_cancelled", text, details))
    return entries
