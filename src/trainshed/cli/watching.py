"""`trainshed jobs watch`: the progress of a job until it is over: its replicas, or its trials."""

import json

import click

from trainshed.cli.client import Client
from trainshed.cli.colours import state_colour
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.following import follow
from trainshed.cli.logs import require_over
from trainshed.cli.moments import duration
from trainshed.cli.outlasting import Changed, Patience
from trainshed.cli.progress import show
from trainshed.cli.references import find_job, job_path
from trainshed.cli.tuning_panel import best_text, best_trial
from trainshed.cli.tuning_views import assignment
from trainshed.cli.views import JobView
from trainshed.core.lifecycle.states import JobState


@click.command()
@click.argument("job")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people, or the job's description as one JSON object per line, at each change.",
)
@takes_endpoint
@click.pass_obj
def command(session: Session, endpoint: Endpoint, job: str, form: str) -> None:
    """Show the progress of a job until it is over: its replicas, of a tuning job its trials.

    The exit status is 0 if the job succeeded, 1 otherwise, 130 after Ctrl-C (the job goes on).
    """
    client = endpoint.client(raw=form == "json")
    found = JobView.parse(find_job(client, job, endpoint.project))
    try:
        over = _printed(client, found) if form == "json" else watched(client, found, session)
    except KeyboardInterrupt:
        click.echo(f"The job goes on. Its lines: trainshed jobs logs -f {job}", err=True)
        raise SystemExit(130) from None
    if form == "text":
        for line in ending(over, session.now()):
            click.echo(line)
    if over.state is not JobState.SUCCEEDED:
        raise SystemExit(1)


def watched(client: Client, job: JobView, session: Session) -> JobView:
    """Show a job's progress until it is over, and return its last view. Raises Refused, Unreachable."""
    # What hundreds of trials write nobody can read, and a table of trials has no room for it.
    lines = job.program.tuning is None
    show(
        follow(client, job.uid, lines=lines, patience=_patience(client, job)),
        session.now,
        lines=False,
    )
    return require_over(client, job.uid)


def ending(over: JobView, now: int) -> list[str]:
    """How a job ended: state and time, of a tuning job its best trial, of a pipeline its model, else the error."""
    state = click.style(over.state.value, fg=state_colour(over.state), bold=True)
    lines = [f"{state} after {duration(over.lasted(now))}"]
    tuned = over.program
    if tuned.tuning and (best := best_trial(tuned.tuning, tuned.trials)):
        lines.append(f"best is {click.style(best_text(tuned.tuning, best), fg='green')}")
        lines.append(f"with {assignment(best.parameters, 6)}")
    if over.model:
        lines.append(f"model {over.model}")
    return [*lines, over.error] if over.error else lines


def _printed(client: Client, job: JobView) -> JobView:
    views = Changed()
    for view in _patience(client, job).outlast(
        lambda: client.stream(job_path(job.uid, "/watch")),
        lambda found: iter([found] if views.fresh(found) else []),
    ):
        click.echo(json.dumps(view))
    return require_over(client, job.uid)


def _patience(client: Client, job: JobView) -> Patience:
    return Patience(client, job.uid, f"trainshed jobs watch {job.id}")
