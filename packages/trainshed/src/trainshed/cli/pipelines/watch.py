"""Follows a pipeline job until it finishes: prints the states of its tasks, and the last lines of jobs that
failed."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

import click

from trainshed.cli.client import Client, RequestError
from trainshed.cli.jobs.follow import Lines, follow
from trainshed.cli.jobs.references import job_path
from trainshed.cli.jobs.views import JobView, LineTexts
from trainshed.cli.output import print_data
from trainshed.cli.pipelines.tasks import COLOURS, Task, first_line, lasted, progress_of, tasks_of
from trainshed.cli.text.colours import state_colour
from trainshed.core.lifecycle.states import JobState
from trainshed.core.units import Nanos

_MAX_LOGS: Final = 5
"""Maximum number of failed tasks whose last lines are printed."""
_LOG_LINES: Final = 10
"""Number of last lines that are printed for a failed task."""
_IDLE_FACTOR: Final = 3
"""After each request for the tasks, pause for this multiple of its duration: to follow a pipeline job with a
thousand tasks must not occupy the service."""


def follow_on(client: Client, now: Callable[[], Nanos], name: str, *, watch: bool | None, form: str) -> None:
    """Print a new pipeline job. Then follow it, or print how to follow it.

    `watch`: whether to follow; None = follow on a terminal. `form`: as `output_format` passes it. Raises
    SystemExit unless the pipeline job succeeded.
    """
    if form == "json":
        print_data(client.get(f"/v1/{name}"))
    else:
        click.echo(name)
    view = JobView.parse(client.get(job_path(name)))
    if sys.stdout.isatty() if watch is None else watch:
        follow_to_end(client, view, now)
    else:
        click.echo(f"To follow it: trainshed pipelines watch {view.job_id}", err=True)


def follow_to_end(client: Client, view: JobView, now: Callable[[], Nanos]) -> None:
    """Print the changes of tasks until the pipeline job finishes, and then its result. Raises RequestError,
    Unreachable, and SystemExit unless the pipeline job succeeded."""
    again = f"trainshed pipelines watch {view.job_id}"
    known, logs = dict[tuple[str, ...], object](), 0
    try:
        for update in follow(client, view.uid, again):
            if not isinstance(update, JobView):
                continue
            view, began = update, time.monotonic()
            tasks = tasks_of(client.get(f"/v1/{view.name}"))
            for task in sorted(tasks, key=lambda task: task.ended or task.started):
                is_failure = task.state == "FAILED" and task.is_leaf
                is_hidden = task.state == "PENDING" or (task.is_in_loop and not is_failure)
                if is_hidden or known.get(task.path) == progress_of(task):
                    continue
                known[task.path] = progress_of(task)
                state = click.style(task.state, fg=COLOURS.get(task.state))
                after = f" after {lasted(task, now())}" if task.ended and task.started else ""
                click.echo(f"{'/'.join(task.path)}  {state}{after}  {task.counts}".rstrip())
                if is_failure:
                    logs += 1
                    for line in _failure_lines(client, task, shows_log=logs <= _MAX_LOGS):
                        click.echo(f"  {line}")
            if not view.state.is_final:
                time.sleep(_IDLE_FACTOR * (time.monotonic() - began))
    except KeyboardInterrupt:
        click.echo(
            f"The pipeline job continues. To follow it: {again}. To cancel it: trainshed pipelines cancel "
            f"{view.job_id}",
            err=True,
        )
        raise SystemExit(130) from None
    state = click.style(view.state.value, fg=state_colour(view.state), bold=True)
    click.echo(f"{state} after {view.running_time(now())}")
    if view.error:
        click.echo(first_line(view.error.message))
    if view.state is JobState.FAILED:
        click.echo(f"To run the failed tasks again: trainshed pipelines retry {view.job_id}", err=True)
    if view.state is not JobState.SUCCEEDED:
        raise SystemExit(1)


def _failure_lines(client: Client, task: Task, *, shows_log: bool) -> Iterator[str]:
    """Yield the last lines of a failed task's job, or its error if it has no lines, and the job's name."""
    lines = list[str]()
    if task.job and shows_log:
        try:
            for block in Lines(client, task.job, tail=_LOG_LINES).read_new():
                lines += LineTexts(JobView()).format(block)
        except RequestError:
            lines.clear()  # The job may be deleted, or be a tuning job, which has no log.
    for text in lines or [task.error]:
        yield from text.splitlines()
    if task.job:
        yield f"job {task.job}"
