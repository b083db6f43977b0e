"""The tasks of one pipeline job in memory, with indexes by parent and job. A step changes them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from trainshed.core.names import JobUid
from trainshed.core.pipeline_jobs import TaskCounts
from trainshed_pipelines.runs.records import ROOT, TaskKind, TaskRun, TaskState, Values
from trainshed_pipelines.template.structures import Component, Dag, Task, Template

RUNS_A_PROGRAM = frozenset({TaskKind.JOB, TaskKind.IMPORTER, TaskKind.NATIVE})
_COUNTS = {
    TaskState.WAITING: "waiting",
    TaskState.PENDING: "waiting",
    TaskState.RUNNING: "running",
    TaskState.CANCELLING: "running",
    TaskState.SUCCEEDED: "succeeded",
    TaskState.SKIPPED: "cached",
    TaskState.FAILED: "failed",
    TaskState.CANCELLED: "cancelled",
    TaskState.NOT_TRIGGERED: "not_triggered",
}


class Tree:
    """All tasks of a pipeline job.

    `template`: its compiled pipeline. `tasks`: the stored tasks, in any order; () before the first step.
    `earlier`: the successful tasks of the pipeline job that this one repeats, by path.
    """

    def __init__(
        self, template: Template, tasks: Iterable[TaskRun] = (), earlier: Mapping[str, TaskRun] | None = None
    ) -> None:
        self.template = template
        self.earlier = earlier or {}
        self._tasks: dict[int, TaskRun] = {}
        #: The changed tasks since the last call of `take_changes`, by number.
        self._changes: dict[int, TaskRun] = {}
        self._children: defaultdict[int, dict[tuple[str, int], int]] = defaultdict(dict)
        #: Number of unfinished children, by parent.
        self._unfinished: Counter[int] = Counter()
        self._by_job: dict[JobUid, int] = {}
        self._states: Counter[TaskState] = Counter()
        #: Number of tasks, including the iterations that loops have yet to start.
        self.expected = 0
        #: Size in bytes of the inputs and outputs of all tasks as JSON.
        self.size = 0
        self._dependents: dict[str, dict[str, tuple[str, ...]]] = {}
        for task in sorted(tasks, key=lambda task: task.number):
            self.put(task)
        self._changes.clear()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[TaskRun]:
        return iter(self._tasks.values())

    def __getitem__(self, number: int) -> TaskRun:
        return self._tasks[number]

    @property
    def counts(self) -> TaskCounts:
        totals = Counter[str]()
        for state, count in self._states.items():
            totals[_COUNTS[state]] += count
        return TaskCounts(**totals)

    def put(self, task: TaskRun) -> None:
        """Add or replace a task."""
        old = self._tasks.get(task.number)
        was_unfinished = old is not None and not old.state.is_final
        self._tasks[task.number] = self._changes[task.number] = task
        if task.number != ROOT:
            if old is None:
                self._children[task.parent][task.name, task.iteration] = task.number
            self._unfinished[task.parent] += int(not task.state.is_final) - int(was_unfinished)
        self.expected += task.iterations + (task.iteration < 0)
        if old is not None:
            self.expected -= old.iterations + (old.iteration < 0)
        for side in ("inputs", "outputs"):
            new, before = getattr(task, side), getattr(old, side, None)
            if new is not before:
                self.size += _size(new) - _size(before)
        if old is not None and old.job != task.job:
            self._by_job.pop(old.job, None)
        if task.job:
            self._by_job[task.job] = task.number
        if task.kind in RUNS_A_PROGRAM:
            if old is not None:
                self._states[old.state] -= 1
            self._states[task.state] += 1

    def take_changes(self) -> tuple[TaskRun, ...]:
        """Return the tasks that changed since the last call, sorted by number."""
        changes = tuple(self._changes[number] for number in sorted(self._changes))
        self._changes.clear()
        return changes

    def task_of_job(self, uid: JobUid) -> TaskRun | None:
        """Return the task whose current attempt runs as this job, or None."""
        number = self._by_job.get(uid)
        return None if number is None else self._tasks[number]

    def jobs(self) -> Iterator[JobUid]:
        """Yield the jobs of unfinished tasks."""
        for uid, number in self._by_job.items():
            if not self._tasks[number].state.is_final:
                yield uid

    def children(self, number: int) -> list[TaskRun]:
        """Return the tasks of a DAG, or the iterations of a loop, sorted by number."""
        return [self._tasks[child] for child in self._children[number].values()]

    def sibling(self, task: TaskRun, name: str) -> TaskRun:
        """Return the task with this name in the same DAG."""
        return self._tasks[self._children[task.parent][name, -1]]

    def has_unfinished(self, number: int) -> bool:
        """Return whether a DAG or loop has unfinished tasks."""
        return self._unfinished[number] > 0

    def component(self, task: TaskRun) -> Component:
        return self.template.components[task.component]

    def is_iteration(self, task: TaskRun) -> bool:
        return task.iteration >= 0

    def definition(self, task: TaskRun) -> Task:
        """Return the definition of a task in its DAG. For an iteration, return that of its loop. Must not be
        called for the root."""
        parent = self._tasks[task.parent]
        if self.is_iteration(task):
            return self.definition(parent)
        dag = self.component(parent).implementation
        assert isinstance(dag, Dag), "only a DAG has tasks with names"
        return dag.tasks[task.name]

    def dependents(self, task: TaskRun) -> list[TaskRun]:
        """Return the tasks of the same DAG that wait for this task."""
        if task.number == ROOT or self.is_iteration(task):
            return []
        parent = self._tasks[task.parent]
        if (names := self._dependents.get(parent.component)) is None:
            dag = self.component(parent).implementation
            assert isinstance(dag, Dag), "only a DAG has tasks with names"
            lists = defaultdict[str, list[str]](list)
            for definition in dag.tasks.values():
                for upstream in definition.upstream:
                    lists[upstream].append(definition.name)
            names = self._dependents[parent.component] = {
                name: tuple(waiting) for name, waiting in lists.items()
            }
        return [self.sibling(task, name) for name in names.get(task.name, ())]

    def path(self, task: TaskRun) -> str:
        """Return the path of a task: the names of its DAGs and its own, with the index of an iteration, such
        as `for-loop-1[3]/train`. The path of the root is ""."""
        parts: list[str] = []
        while task.number != ROOT:
            if self.is_iteration(task):
                loop = self._tasks[task.parent]
                parts.append(f"{task.name}[{task.iteration}]")
                task = self._tasks[loop.parent]
            else:
                parts.append(task.name)
                task = self._tasks[task.parent]
        return "/".join(reversed(parts))


def _size(values: Values | None) -> int:
    return len(msgspec.json.encode(values)) if values else 0


def reusable_tasks(tree: Tree, run: str) -> dict[str, TaskRun]:
    """Return the successful tasks of a pipeline job by path, for a pipeline job that repeats it. Tasks that
    were cached themselves keep their source. `run`: the full name of the pipeline job."""
    return {
        tree.path(task): replace(task, cached_from=task.cached_from or f"{run}#{task.number}")
        for task in tree
        if task.state.is_successful and task.kind in RUNS_A_PROGRAM
    }
