"""`trainshed jobs wait` and `delete`: wait until jobs are over; delete jobs."""

import threading
import time
from collections.abc import Callable
from typing import Any

import click

from trainshed.cli.actions import Actions, takes_actions
from trainshed.cli.client import Client, Unreachable
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.follow import Patience
from trainshed.cli.jobs.references import find_job, job_path, takes_jobs
from trainshed.cli.jobs.views import JobView
from trainshed.cli.output_format import output_format, print_data
from trainshed.cli.text.colours import state_colour
from trainshed.cli.time_limits import TimeLimit
from trainshed.core.lifecycle.states import JobState

_TIMED_OUT = 124
"""Exit status after --timeout; the same as that of the command `timeout`."""
_RESULTS = {JobState.SUCCEEDED: 0, JobState.FAILED: 1, JobState.CANCELLED: 2}
"""Exit status by how a job ended."""


@click.command()
@takes_jobs
@click.option(
    "--timeout",
    type=TimeLimit(),
    metavar="TIME",
    help="Give up after this time, such as 45s or 2h.",
)
@output_format("text", "Output as text, or the jobs that are over as JSON or YAML for programs.")
@takes_endpoint
def wait(endpoint: Endpoint, job: tuple[str, ...], timeout: float | None, form: str) -> None:
    """Wait until jobs are over, and print how each ended.

    The exit status is 0 if all succeeded, 1 if one failed, 2 if one was cancelled and none failed, 124 after
    --timeout, 130 after Ctrl-C. The jobs go on in either case.
    """
    client = endpoint.client(raw=form == "json")
    jobs = [JobView.parse(find_job(client, reference, endpoint.project)) for reference in job]
    ended: dict[str, dict[str, Any]] = {}
    failures: list[click.ClickException] = []
    threads = [
        threading.Thread(target=_look, args=(client, view, ended, failures), daemon=True)
        for view in jobs
    ]
    for thread in threads:
        thread.start()
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        for thread in threads:
            thread.join(_left(deadline))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    overs = [JobView.parse(ended[view.uid]) for view in jobs if view.uid in ended]
    if form == "json":
        print_data([ended[over.uid] for over in overs])
    else:
        for over in overs:
            click.echo(f"{over.id}  {_styled(over.state)}  {over.display_name}".rstrip())
    if failures:
        raise failures[0]
    late = [view.id for view in jobs if view.uid not in ended]
    if late:
        click.echo(f"Not over after {timeout:g} s: {', '.join(late)}", err=True)
        raise SystemExit(_TIMED_OUT)
    results = {_RESULTS[over.state] for over in overs}
    # A failed job counts more than a cancelled one.
    raise SystemExit(1 if 1 in results else max(results))


@click.command()
@takes_jobs
@takes_actions
@takes_endpoint
def delete(endpoint: Endpoint, *, actions: Actions, job: tuple[str, ...]) -> None:
    """Delete jobs that are over, with their logs, curves and autopsies. What they wrote to buckets stays.

    The others are deleted even if one cannot be.
    """
    client = endpoint.client()

    def delete_one(reference: str) -> None:
        view = JobView.parse(find_job(client, reference, endpoint.project))
        client.delete(job_path(view.uid))
        actions.did("job", view.id, "deleted", f"{view.id}  is deleted")

    if not each(job, delete_one, actions):
        raise SystemExit(1)


def each(references: tuple[str, ...], act: Callable[[str], None], actions: Actions) -> bool:
    """Call `act` for each job, and print the errors; whether there was none. After an error it goes on with
    the next job."""
    well = True
    for reference in references:
        try:
            act(reference)
        except click.ClickException as failure:
            text = failure.format_message()
            # Many messages name the job already.
            click.echo(f"Error: {text if reference in text else f'{reference}: {text}'}", err=True)
            actions.did("job", reference, "failed", why=text)
            well = False
    return well


def _look(
    client: Client,
    job: JobView,
    ended: dict[str, dict[str, Any]],
    failures: list[click.ClickException],
) -> None:
    patience = Patience(client, job.uid, f"trainshed jobs wait {job.id}")
    try:
        for _ in patience.outlast(
            lambda: client.stream(job_path(job.uid, "/watch")), lambda _: iter(())
        ):
            pass
        over = client.get(job_path(job.uid))
        state = JobView.parse(over).state
        if not state.is_final:
            raise Unreachable(f"The service ended while {job.id} is {state.value}.")
        ended[job.uid] = over
    except click.ClickException as failure:
        failures.append(failure)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _styled(state: JobState) -> str:
    return click.style(state.value, fg=state_colour(state))
