"""The state machine of pipeline jobs: which tasks can start, how tasks end, and what follows
(facts/pipelines). Pure.

A `Step` applies new facts to the tasks of one pipeline job: states of jobs, a cancel, the time. Its method
`settle` then decides everything that follows, and returns the tasks that can start now. The caller starts
each of them and reports the result by one of the methods `submit`, `finish`, `use_cached` and `fail`. Then it
calls `settle` again, until no task can start.

The states of tasks change only by the transition table `tasks.toml`, which is total.
"""

import enum
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.failure.messages import CANCELLED, INVALID_ARGUMENT
from trainshed.core.job import JobError
from trainshed.core.lifecycle.states import JobState
from trainshed.core.lifecycle.transition import Table
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed_pipelines.runs.bindings import (
    InputError,
    collect_iterations,
    collect_outputs,
    is_triggered,
    items_of,
    resolve_inputs,
    with_item,
    without_items,
)
from trainshed_pipelines.runs.records import ROOT, TaskKind, TaskRun, TaskState, Values
from trainshed_pipelines.runs.tree import Tree
from trainshed_pipelines.template.placeholders import Context
from trainshed_pipelines.template.structures import Component, Container, Dag, Importer

FAILED_PRECONDITION: Final = 9
MAX_ITERATIONS: Final = 2_000
"""Maximum number of iterations of a loop. Loops may be nested."""
MAX_RUN_TASKS: Final = 20_000
"""Maximum number of tasks of a run, including loops, their iterations, and the tasks in them."""
MAX_RUN_SIZE: Final = 256 << 20
"""Maximum size in bytes of the inputs and outputs of all tasks of a run as JSON. Each task stores its own
inputs, so a large value that many tasks receive counts for each of them."""


class TaskTrigger(enum.StrEnum):
    """An event that can change the state of a task."""

    #: A job was stored for the task.
    SUBMITTED = "submitted"
    #: The task's program, DAG or loop has started.
    BEGAN = "began"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    #: The task's job failed, and the retry policy permits another attempt.
    RETRIED = "retried"
    #: Outputs of an earlier run are used.
    CACHED = "cached"
    NOT_TRIGGERED = "not_triggered"
    CANCEL_ACCEPTED = "cancel_accepted"
    CANCELLED = "cancelled"


TASKS: Final = Table(
    "task", TaskState, TaskTrigger, tomllib.loads(Path(__file__).with_name("tasks.toml").read_text("utf-8"))
)


class JobReport(Struct, frozen=True):
    """The state of a task's job."""

    state: JobState
    started: Nanos = Nanos(0)
    ended: Nanos = Nanos(0)
    error: JobError | None = None
    #: The outputs of a successful job. None if they cannot be read.
    outputs: Values | None = None
    #: Why the outputs cannot be read, as a sentence.
    fault: str = ""


def kind_of(component: Component) -> TaskKind:
    """Return what a task of the component does, unless the service carries out the component itself."""
    match component.implementation:
        case Dag():
            return TaskKind.DAG
        case Importer():
            return TaskKind.IMPORTER
        case Container():
            return TaskKind.JOB


class Circumstances(Struct, frozen=True):
    """Properties of a pipeline job that apply to all of its tasks."""

    #: The placeholders of the pipeline job.
    facts: Context
    #: Whether no further task starts after the failure of one (PIPELINE_FAILURE_POLICY_FAIL_FAST).
    fails_fast: bool = False
    #: Whether the pipeline job is being cancelled.
    is_cancelling: bool = False
    #: Returns what a task does, from its component.
    kind_of: Callable[[Component], TaskKind] = kind_of


class Step:
    """One step of a pipeline job. It changes the tasks in `tree`."""

    def __init__(self, tree: Tree, circumstances: Circumstances, now: Nanos) -> None:
        self.tree = tree
        self.now = now
        self._circumstances = circumstances
        #: Numbers of the tasks to examine: those whose circumstances have changed.
        self._queue: deque[int] = deque()
        self._queued: set[int] = set()
        self._has_failed = any(task.state is TaskState.FAILED for task in tree)

    # --- New facts ---

    def begin(self, inputs: Values) -> None:
        """Create the root task of a new pipeline job. `inputs`: the parameters and artifacts of the run."""
        assert not len(self.tree), "the pipeline job has begun already"
        root = TaskRun(number=ROOT, component="root", kind=TaskKind.DAG, created=self.now, inputs=inputs)
        self.tree.put(root)
        self._open(root)

    def examine_all(self) -> None:
        """Examine all unfinished tasks, for example after a restart of the service."""
        for task in tuple(self.tree):
            if not task.state.is_final:
                self._examine_later(task.number)

    def report(self, task: TaskRun, job: JobReport) -> None:
        """Apply the state of a task's job."""
        if task.state.is_final or not job.state:
            return
        if job.started and task.state is TaskState.PENDING:
            task = self._fire(task, TaskTrigger.BEGAN, started=job.started)
        match job.state:
            case JobState.SUCCEEDED if job.outputs is not None:
                if self._check_size(task.number):
                    self._end(task, TaskTrigger.SUCCEEDED, job, outputs=job.outputs)
            case JobState.SUCCEEDED:
                text = f"The job of the task succeeded, but {job.fault}"
                self._end_failed(task, job, JobError(INVALID_ARGUMENT, text, cause="outputs"))
            case JobState.FAILED:
                self._end_failed(task, job, job.error)
            case JobState.CANCELLED:
                why = f": {job.error.message}" if job.error else "."
                error = JobError(CANCELLED, f"The job was cancelled{why}", cause="cancelled")
                self._end(task, TaskTrigger.CANCELLED, job, error=error)
            case _:
                pass

    def lose(self, task: TaskRun) -> None:
        """Fail a task whose job was deleted."""
        error = JobError(FAILED_PRECONDITION, "The job of the task was deleted or is unreadable.")
        self.fail(task.number, error)

    def cancel(self) -> tuple[JobUid, ...]:
        """Cancel all unfinished tasks. Return the jobs to cancel."""
        self._circumstances = replace(self._circumstances, is_cancelling=True)
        jobs: list[JobUid] = []
        for task in sorted(self.tree, key=lambda task: -task.number):
            if task.state.is_final or task.kind in (TaskKind.DAG, TaskKind.LOOP):
                continue
            if task.job and task.state is not TaskState.WAITING:
                jobs.append(task.job)
            if task.state is not TaskState.CANCELLING:
                self._after(self._fire(task, TaskTrigger.CANCEL_ACCEPTED))
        self.examine_all()
        return tuple(jobs)

    # --- The results of tasks that `settle` has returned ---

    def submit(self, number: int, job: JobUid, **changes: Any) -> None:
        """Record the job of a task, which is stored in the same transaction."""
        self._fire(self.tree[number], TaskTrigger.SUBMITTED, job=job, **changes)

    def finish(self, number: int, outputs: Values, **changes: Any) -> None:
        """End a task that the service has carried out itself."""
        times = {"started": self.now, "ended": self.now}
        task = self.tree[number]
        self._after(self._fire(task, TaskTrigger.SUCCEEDED, outputs=outputs, **times, **changes))

    def use_cached(self, number: int, outputs: Values, source: str, **changes: Any) -> None:
        """End a task with the outputs of an earlier run. `source`: see `TaskRun.cached_from`."""
        facts = {"outputs": outputs, "cached_from": source, "started": self.now, "ended": self.now}
        self._after(self._fire(self.tree[number], TaskTrigger.CACHED, **facts, **changes))

    def fail(self, number: int, error: JobError) -> None:
        """Fail a task without a retry, because its inputs, its job or its outputs are invalid."""
        task = self.tree[number]
        self._failed(self._fire(task, TaskTrigger.FAILED, error=error, ended=self.now))

    # --- Decisions ---

    def settle(self) -> list[TaskRun]:
        """Decide everything that follows from the known facts. Return the tasks that can start now."""
        ready: list[TaskRun] = []
        while self._queue:
            number = self._queue.popleft()
            self._queued.discard(number)
            task = self.tree[number]
            if task.state is TaskState.WAITING and number != ROOT:
                if (startable := self._examine_waiting(task)) is not None:
                    ready.append(startable)
            elif task.state is TaskState.RUNNING and task.kind is TaskKind.LOOP:
                self._examine_loop(task)
            elif task.state is TaskState.RUNNING and task.kind is TaskKind.DAG:
                self._examine_dag(task)
        return ready

    def next_deadline(self) -> Nanos | None:
        """Return the earliest time at which a pause before a retry ends, or None. The time is in the past if
        the pause has just ended, and this step has not examined the task."""
        pauses = (
            task.not_before for task in self.tree if task.state is TaskState.WAITING and task.not_before
        )
        return min(pauses, default=None)

    def _examine_waiting(self, task: TaskRun) -> TaskRun | None:
        """Start, skip or fail a task that waits, if its upstream tasks have ended. Return the task if the
        caller must start it."""
        if self._circumstances.is_cancelling:
            self._after(self._fire(task, TaskTrigger.CANCEL_ACCEPTED, ended=self.now))
            return None
        if task.not_before > self.now:
            return None
        definition = self.tree.definition(task)
        if self._stops_after_failure() and not definition.runs_always:
            text = "another task failed, and the failure policy of the pipeline job is FAIL_FAST."
            self._skip(task, f"The task was not started, because {text}")
            return None
        if self.tree.is_iteration(task) or task.failed_jobs:
            return self._start(task)  # It has its inputs.
        upstream = [self.tree.sibling(task, name) for name in definition.upstream]
        if not all(other.state.is_final for other in upstream):
            return None
        missing = [other.name for other in upstream if not other.state.is_successful]
        if missing and not definition.runs_always:
            self._skip(task, f"The task was not started, because {_states(upstream)}.")
            return None
        try:
            inputs = resolve_inputs(self.tree, task, self._circumstances.facts)
            if not is_triggered(definition, inputs):
                self._skip(task, f"The condition of the task is false: {definition.condition}")
                return None
        except InputError as fault:
            self.fail(task.number, JobError(INVALID_ARGUMENT, str(fault), cause="inputs"))
            return None
        return self._start(replace(task, inputs=inputs))

    def _start(self, task: TaskRun) -> TaskRun | None:
        self.tree.put(task)
        if not self._check_size(task.number):
            return None
        match task.kind:
            case TaskKind.DAG:
                self._open(task)
                return None
            case TaskKind.LOOP:
                self._begin_loop(task)
                return None
            case _:
                return task

    def _check_size(self, number: int) -> bool:
        """Return whether the run has at most `MAX_RUN_SIZE`. Otherwise, fail the task and drop its inputs."""
        if self.tree.size <= MAX_RUN_SIZE:
            return True
        text = f"The inputs and outputs of all tasks have more than {MAX_RUN_SIZE:,} bytes. "
        text += "Pass large values as artifacts."
        self.tree.put(replace(self.tree[number], inputs=Values()))
        self.fail(number, JobError(INVALID_ARGUMENT, text, cause="inputs"))
        return False

    def _require_tasks(self, count: int) -> None:
        """Raise InputError if the run would have more than `MAX_RUN_TASKS` with `count` further tasks."""
        if self.tree.expected + count > MAX_RUN_TASKS:
            raise InputError(
                f"The run would have more than {MAX_RUN_TASKS:,} tasks, including the iterations of loops. "
                "Split the pipeline, or let each iteration process several items."
            )

    def _open(self, task: TaskRun) -> None:
        """Start a DAG: create its tasks."""
        dag = self.tree.component(task).implementation
        assert isinstance(dag, Dag), "tasks of this kind have a DAG"
        try:
            self._require_tasks(len(dag.tasks))
        except InputError as fault:
            self.fail(task.number, JobError(INVALID_ARGUMENT, str(fault), cause="inputs"))
            return
        self._fire(task, TaskTrigger.BEGAN, started=self.now)
        for definition in dag.tasks.values():
            component = self.tree.template.components[definition.component]
            looping = definition.iterator is not None
            kind = TaskKind.LOOP if looping else self._circumstances.kind_of(component)
            self._add(task, component.name, kind, name=definition.name)
        self._examine_later(task.number)

    def _begin_loop(self, task: TaskRun) -> None:
        try:
            items = items_of(self.tree.definition(task), task.inputs, self._circumstances.facts)
            if len(items) > MAX_ITERATIONS:
                raise InputError(
                    f"The loop has {len(items):,} items. At most {MAX_ITERATIONS:,} are allowed. Let each "
                    "iteration process several items."
                )
            self._require_tasks(len(items))
        except InputError as fault:
            self.fail(task.number, JobError(INVALID_ARGUMENT, str(fault), cause="inputs"))
            return
        self._fire(task, TaskTrigger.BEGAN, started=self.now, iterations=len(items))
        self._examine_later(task.number)

    def _examine_loop(self, task: TaskRun) -> None:
        """Start the next iterations of a loop, as far as its parallelism limit permits, or end the loop."""
        definition = self.tree.definition(task)
        iterator = definition.iterator
        assert iterator is not None, "a loop has an iterator"
        iterations = self.tree.children(task.number)
        stops = self._circumstances.is_cancelling or self._stops_after_failure()
        if not stops and len(iterations) < task.iterations:
            items = items_of(definition, task.inputs, self._circumstances.facts)
            running = sum(not iteration.state.is_final for iteration in iterations)
            free = (iterator.parallelism_limit or len(items)) - running
            component = self.tree.component(task)
            kind = self._circumstances.kind_of(component)
            shared = without_items(iterator, task.inputs, component)
            for index in range(len(iterations), min(len(iterations) + free, len(items))):
                inputs = with_item(iterator, shared, items[index])
                self._add(task, task.component, kind, name=task.name, iteration=index, inputs=inputs)
                self._check_size(len(self.tree) - 1)
        if not self.tree.has_unfinished(task.number):
            self._close(task, lambda done: collect_iterations(self.tree, task, done))

    def _examine_dag(self, task: TaskRun) -> None:
        if not self.tree.has_unfinished(task.number):
            self._close(task, lambda _: collect_outputs(self.tree, task))

    def _close(self, task: TaskRun, outputs: Callable[[Sequence[TaskRun]], Values]) -> None:
        """End a DAG or loop whose tasks have all ended."""
        children = self.tree.children(task.number)
        failed = [child for child in children if child.state is TaskState.FAILED]
        cancelled = [child for child in children if child.state is TaskState.CANCELLED]
        if cancelled and self._circumstances.is_cancelling:
            self._after(self._fire(task, TaskTrigger.CANCELLED, ended=self.now))
        elif causes := failed or cancelled:
            self.fail(task.number, causes[0].error or JobError(CANCELLED, "A task was cancelled."))
        elif self._circumstances.is_cancelling and len(children) < task.iterations:
            self._after(self._fire(task, TaskTrigger.CANCELLED, ended=self.now))
        elif self._check_size(task.number):
            facts = {"outputs": outputs(children), "ended": self.now}
            self._after(self._fire(task, TaskTrigger.SUCCEEDED, **facts))

    def _add(self, parent: TaskRun, component: str, kind: TaskKind, **fields: Any) -> None:
        """Create a task of a DAG, or an iteration of a loop."""
        number = len(self.tree)
        self.tree.put(
            TaskRun(
                number=number,
                parent=parent.number,
                component=component,
                kind=kind,
                created=self.now,
                **fields,
            )
        )
        self._examine_later(number)

    def _end_failed(self, task: TaskRun, job: JobReport, error: JobError | None) -> None:
        """Retry a task whose job failed, if its retry policy permits, or fail the task."""
        policy = self.tree.definition(task).retry
        failures = len(task.failed_jobs) + 1
        if failures <= policy.max_count and not self._circumstances.is_cancelling:
            self._fire(
                task,
                TaskTrigger.RETRIED,
                job=JobUid(0),
                failed_jobs=(*task.failed_jobs, task.job),
                not_before=Nanos(self.now + policy.delay(failures)),
                error=error,
            )
            self._examine_later(task.number)
            return
        self._end(task, TaskTrigger.FAILED, job, error=error)

    def _end(self, task: TaskRun, trigger: TaskTrigger, job: JobReport, **changes: Any) -> None:
        started = task.started or job.started or job.ended
        if "error" not in changes:
            changes["error"] = None  # The error of an earlier attempt.
        ended = self._fire(task, trigger, started=started, ended=job.ended or self.now, **changes)
        if trigger is TaskTrigger.SUCCEEDED:
            self._after(ended)
        else:
            self._failed(ended)

    def _skip(self, task: TaskRun, why: str) -> None:
        error = JobError(FAILED_PRECONDITION, why, cause="not_triggered")
        self._after(self._fire(task, TaskTrigger.NOT_TRIGGERED, error=error, ended=self.now))

    def _failed(self, task: TaskRun) -> None:
        """Examine everything that the failure of a task can change."""
        self._after(task)
        if not self._has_failed:
            self._has_failed = True
            if self._circumstances.fails_fast:
                self.examine_all()

    def _stops_after_failure(self) -> bool:
        return self._has_failed and self._circumstances.fails_fast

    def _after(self, task: TaskRun) -> None:
        """Examine the tasks that wait for a task, and its parent."""
        if not task.state.is_final or task.number == ROOT:
            return
        for waiting in self.tree.dependents(task):
            self._examine_later(waiting.number)
        self._examine_later(task.parent)

    def _examine_later(self, number: int) -> None:
        if number not in self._queued:
            self._queued.add(number)
            self._queue.append(number)

    def _fire(self, task: TaskRun, trigger: TaskTrigger, **changes: Any) -> TaskRun:
        """Apply a trigger and `changes` to a task, and return the task."""
        state = TASKS.fire(task.state, trigger, (f"{self.tree.path(task) or 'root'}: {task.state}",))
        if state is None:
            return task
        changed = replace(task, state=state, **changes)
        self.tree.put(changed)
        return changed


def _states(upstream: Iterable[TaskRun]) -> str:
    """Return a clause about upstream tasks that did not succeed."""
    wrong = [task for task in upstream if not task.state.is_successful]
    words: Mapping[TaskState, str] = {
        TaskState.FAILED: "failed",
        TaskState.CANCELLED: "was cancelled",
        TaskState.NOT_TRIGGERED: "was not triggered",
    }
    return " and ".join(f"the task {task.name!r} {words[task.state]}" for task in wrong)


def first_failure(tree: Tree) -> TaskRun | None:
    """Return the task that ran a program and failed first, or None."""
    failed = [
        task
        for task in tree
        if task.state is TaskState.FAILED and task.kind not in (TaskKind.DAG, TaskKind.LOOP)
    ]
    blocked = [task for task in tree if task.state is TaskState.FAILED and task.number != ROOT]
    return min(failed or blocked, key=lambda task: (task.ended, task.number), default=None)
