"""The tasks of a pipeline job as a tree, from its template and its task details in public JSON. Pure.

Tasks that have not started come from the template. Iterations of a loop come from the task details.
"""

import re
from collections import Counter, defaultdict
from typing import Any, Final

from msgspec import Struct

from trainshed_console.layers import layers_of
from trainshed_console.rendering import epoch, readable

_MAX_SIBLINGS: Final = 8
"""Maximum number of similar tasks in a layer that are shown separately. Names of similar tasks differ only by
a number at the end."""
_ORDER: Final = ("FAILED", "RUNNING", "CANCELLING", "PENDING", "CANCELLED")
"""The order of states in lists. Tasks in other states come last."""
_UNFINISHED: Final = frozenset({"", "RUNNING", "CANCELLING", "PENDING"})
_WORDS: Final = {"": "Not started", "PENDING": "Waiting", "SKIPPED": "Cached"}
_NUMBER: Final = re.compile(r"-\d+$")


class Task(Struct, frozen=True):
    """A task, an iteration of a loop, or a set of similar tasks."""

    #: The names of the enclosing tasks and its own, separated by slashes. "" for the root.
    path: str
    name: str
    #: "program", "dag", "loop" or "set".
    kind: str
    #: The task in its DAG ({} for an iteration), and its component.
    definition: Any = {}
    component: Any = {}
    #: The task details. {} before the enclosing DAG starts.
    detail: Any = {}
    #: The tasks of a set, in the order of lists.
    members: tuple["Task", ...] = ()

    @property
    def state(self) -> str:
        """The state of the task in the public API, or "" before the start of the enclosing DAG. A set has the
        state of its first task."""
        return self.members[0].state if self.members else self.detail.get("state", "")

    @property
    def state_text(self) -> str:
        return _WORDS.get(self.state) or readable(self.state)

    @property
    def job(self) -> str:
        """The full name of the task's job, or "" without a job."""
        return self.detail.get("executorDetail", {}).get("containerDetail", {}).get("mainJob", "")

    @property
    def seconds(self) -> float | None:
        """The duration of the task, or None if it has not started or not finished."""
        start, end = self.detail.get("startTime", ""), self.detail.get("endTime", "")
        return epoch(end) - epoch(start) if start and end else None

    @property
    def upstream(self) -> dict[str, bool]:
        """For each task before this one in the same DAG, by name: whether this task uses its outputs."""
        names = dict.fromkeys(self.definition.get("dependentTasks", ()), False)
        inputs = self.definition.get("inputs", {})
        for source in (value for kind in inputs.values() for value in kind.values()):
            output: Any = source.get("taskOutputParameter") or source.get("taskOutputArtifact") or {}
            if producer := output.get("producerTask"):
                names[producer] = True
        return names


class TaskTree:
    """The tasks of a pipeline job. `job`: the pipeline job in the Vertex API, as JSON."""

    def __init__(self, job: Any) -> None:
        spec: Any = job.get("pipelineSpec", {})
        self._components: Any = spec.get("components", {})
        #: Task details by the ID of the parent and the name.
        self._details: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for entry in job.get("jobDetail", {}).get("taskDetails", ()):
            self._details[entry.get("parentTaskId", "")][entry["taskName"]] = entry
        details: Any = self._details[""]
        detail: Any = next(iter(details.values()), None)
        self.root = Task("", "", "dag", {}, spec.get("root", {}), detail or {})
        #: Values of the pipeline job's parameters, except for defaults.
        self.parameters: Any = job.get("runtimeConfig", {}).get("parameterValues", {})

    def children(self, task: Task) -> list[Task]:
        """Return the tasks of a DAG or a set, or the iterations of a loop. Return [] for other tasks."""
        if task.kind == "set":
            return list(task.members)
        details: Any = self._details[task.detail["taskId"]] if task.detail else {}
        if task.kind == "loop":
            kind = "dag" if "dag" in task.component else "program"
            numbers = sorted((int(name.rpartition("-")[2]), name) for name in details)
            return [
                Task(f"{task.path}/{n}", f"{task.name} {n}", kind, {}, task.component, details[name])
                for n, name in numbers
            ]
        children: list[Task] = []
        for name, definition in task.component.get("dag", {}).get("tasks", {}).items():
            component = self._components.get(definition.get("componentRef", {}).get("name"), {})
            is_loop = "parameterIterator" in definition or "artifactIterator" in definition
            kind = "loop" if is_loop else "dag" if "dag" in component else "program"
            path = f"{task.path}/{name}".lstrip("/")
            children.append(Task(path, name, kind, definition, component, details.get(name, {})))
        return children

    def members(self, task: Task) -> list[Task]:
        """Return the children of a DAG by layer, with many similar tasks folded into sets. Return other
        children in the order of lists: failed tasks first, then running tasks."""
        children = self.children(task)
        if task.kind != "dag":
            return in_order(children)
        names = {child.name for child in children}
        edges = [(name, child.name) for child in children for name in child.upstream if name in names]
        layers = layers_of([child.name for child in children], edges)
        similar: defaultdict[tuple[str, int], list[Task]] = defaultdict(list)
        for child in children:
            similar[_NUMBER.sub("", child.name), layers[child.name]].append(child)
        members: list[Task] = []
        for (stem, layer), tasks in sorted(similar.items(), key=lambda item: item[0][1]):
            path, name = f"{task.path}/{stem}*{layer}".lstrip("/"), f"{stem} × {len(tasks)}"
            folded = [Task(path, name, "set", members=tuple(in_order(tasks)))]
            members += tasks if len(tasks) <= _MAX_SIBLINGS else folded
        return members

    def find(self, path: str) -> Task | None:
        """Return the task or set with this path, or None."""
        task: Task | None = self.root
        parts = path.split("/") if path else []
        for depth in range(1, len(parts) + 1):
            inside = (*self.children(task), *self.members(task)) if task else ()
            paths = {child.path: child for child in inside}
            task = paths.get("/".join(parts[:depth]))
        return task

    def count_text(self, task: Task) -> str:
        """Return the numbers of failed and finished children of a DAG, loop or set as text, or "" if the task
        has no children."""
        states = Counter(child.state for child in self.children(task))
        finished = states.total() - sum(states[state] for state in _UNFINISHED)
        failed = f"{states['FAILED']} failed, " if states["FAILED"] else ""
        return f"{failed}{finished} of {states.total()}" if states else ""

    def walk(self, task: Task) -> list[Task]:
        """Return all started tasks inside a task, in order."""
        started = [child for child in self.children(task) if child.detail]
        return [task for child in started for task in (child, *self.walk(child))]


def in_order(tasks: list[Task]) -> list[Task]:
    """Return tasks in the order of lists: failed tasks first, then running tasks."""
    ranks = {state: rank for rank, state in enumerate(_ORDER)}
    return sorted(tasks, key=lambda task: ranks.get(task.state, len(ranks)))
