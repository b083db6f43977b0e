"""The tasks of a pipeline job in the order of their tree, and their table. Pure."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from trainshed.cli.text.colours import one_line
from trainshed.cli.text.moments import duration, parse_moment
from trainshed.cli.text.tables import Field, table_of
from trainshed.core.units import Nanos

Json = Mapping[str, Any]

_MAX_FAILURES: Final = 10
"""Maximum number of failed tasks inside of loops that a table shows without --all."""
COLOURS: Final = {
    **dict.fromkeys(("PENDING", "NOT_TRIGGERED"), "bright_black"),
    **dict.fromkeys(("SUCCEEDED", "CACHED"), "green"),
    **dict.fromkeys(("CANCELLING", "CANCELLED"), "magenta"),
    "RUNNING": "cyan",
    "FAILED": "red",
}


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a pipeline job."""

    #: The names of the DAGs and loops that contain the task, and its own name.
    path: tuple[str, ...]
    #: A public state. A task that used the outputs of an earlier run is CACHED.
    state: str
    started: Nanos
    ended: Nanos
    #: Full name of the task's job; "" = no job.
    job: str
    error: str
    #: Whether the task has no tasks below it.
    is_leaf: bool
    #: Whether the task is an iteration of a loop, or inside of one.
    is_in_loop: bool
    #: For a loop: the numbers of its iterations by state, and the number of all iterations that are known.
    iterations: Mapping[str, int]
    size: int = 0

    @property
    def counts(self) -> str:
        """The numbers of a loop's iterations, failures first: `1 failed, 4 running, 3 of 10 done`."""
        shown = ("FAILED", "CANCELLED", "NOT_TRIGGERED", "RUNNING")
        words = [
            f"{self.iterations[state]} {state.lower().replace('_', ' ')}"
            for state in shown
            if self.iterations.get(state)
        ]
        return ", ".join((*words, f"{self.done} of {self.size} done")) if self.size else ""

    @property
    def done(self) -> int:
        return self.iterations.get("SUCCEEDED", 0) + self.iterations.get("CACHED", 0)


def tasks_of(job: Json) -> list[Task]:
    """Return the tasks of a public PipelineJob. The tasks of a DAG follow the DAG, in the order of their
    start."""
    spec: Json = job.get("pipelineSpec", {})
    below = dict[str, list[Json]]()
    for detail in job.get("jobDetail", {}).get("taskDetails", ()):
        below.setdefault(detail.get("parentTaskId", ""), []).append(detail)

    def walk(
        parent: Json, component: Json, items: Sequence[Any] | None, path: tuple[str, ...], inside: bool
    ) -> Iterator[Task]:
        """Yield the tasks below a task. `items`: for a loop, the known items; otherwise None."""
        children = below.get(parent["taskId"], ())
        for child in sorted(children, key=lambda child: child.get("startTime") or "~"):
            name, inner = one_line(child["taskName"]), component
            own: Json = {}
            if items is None:
                own = component.get("dag", {}).get("tasks", {}).get(child["taskName"], {})
                reference = own.get("componentRef", {}).get("name")
                inner = spec.get("components", {}).get(reference, {})
            elif label := _item_label(name, items):
                name = f"{name} ({label})"
            iterator = own.get("parameterIterator") or own.get("artifactIterator")
            known = _items(iterator) if iterator else None
            task = _task(child, (*path, name), below.get(child["taskId"], ()), known, inside)
            yield task
            yield from walk(child, inner, known, task.path, inside or known is not None)

    return [task for root in below.get("", ()) for task in walk(root, spec["root"], None, (), False)]


def _task(detail: Json, path: tuple[str, ...], children: Sequence[Json], items: Any, inside: bool) -> Task:
    states = Counter(_state(child) for child in children if items is not None)
    return Task(
        path=path,
        state=_state(detail),
        started=parse_moment(detail.get("startTime", "")),
        ended=parse_moment(detail.get("endTime", "")),
        job=detail.get("executorDetail", {}).get("containerDetail", {}).get("mainJob", ""),
        error=detail.get("error", {}).get("message", ""),
        is_leaf=not children,
        is_in_loop=inside,
        iterations=states,
        size=max(states.total(), len(items or ())),
    )


def _state(detail: Json) -> str:
    state = str(detail.get("state", "PENDING"))
    return "CACHED" if state == "SKIPPED" else state


def _items(iterator: Json) -> Sequence[Any]:
    """Return the items of a loop that the template contains, or () if a parameter contains them."""
    try:
        values: Any = json.loads(iterator.get("items", {}).get("raw") or "[]")
    except ValueError:
        return ()
    return cast("list[Any]", values) if isinstance(values, list) else ()


def _item_label(name: str, items: Sequence[Any]) -> str:
    """Return the item of an iteration, or "" if it is unknown or the same as the iteration's number."""
    number = name.rpartition("-")[2]
    item = items[int(number)] if number.isdecimal() and int(number) < len(items) else number
    return "" if str(item) == number else one_line(json.dumps(item, ensure_ascii=False))[:40]


def task_table(tasks: Sequence[Task], now: Nanos, width: int | None, *, every: bool) -> list[str]:
    """Return the lines of a table of tasks. `width`: maximum characters per line; None = unlimited. `every`:
    show all tasks inside of loops. Otherwise only the first failed ones are shown."""
    shown, failures = list[Task](), 0
    for task in tasks:
        is_failure = task.is_in_loop and task.state == "FAILED"
        failures += is_failure
        if every or not task.is_in_loop or (is_failure and failures <= _MAX_FAILURES):
            shown.append(task)
    fields = (
        Field("TASK", None, lambda task: f"{'  ' * (len(task.path) - 1)}{task.path[-1]}"),
        Field("STATE", "state", colour=lambda task: COLOURS.get(task.state)),
        Field("LASTED", None, lambda task: lasted(task, now), right=True),
        Field("JOB", "job", lambda name: name.rpartition("/")[2], optional=True),
        Field("NOTE", None, _note, optional=True, wraps=True),
    )
    return table_of(fields, shown, width)


def lasted(task: Task, now: Nanos) -> str:
    """Return the duration of a task as text; "" if it has not started."""
    return duration((task.ended or now) - task.started) if task.started else ""


def _note(task: Task) -> str:
    return task.counts or (first_line(task.error) if task.is_leaf else "")


def first_line(text: str) -> str:
    """Return the first line of an error. The other lines contain the end of a log."""
    return next(iter(text.strip().splitlines()), "").strip()


def progress_of(task: Task) -> object:
    """Return a value that changes when a change of the task is worth a line: its state; for a loop also the
    number of failures, and each twentieth of its iterations."""
    return task.state, task.iterations.get("FAILED"), 20 * task.done // max(task.size, 1)
