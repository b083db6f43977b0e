"""`trainshed jobs watch`: the progress of a job's replicas until it is over."""

import click

from trainshed.cli.client import Client
from trainshed.cli.colours import state_colour
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.following import follow
from trainshed.cli.logs import require_over
from trainshed.cli.moments import duration
from trainshed.cli.progress import show
from trainshed.cli.references import find_job
from trainshed.cli.views import JobView
from trainshed.core.lifecycle.states import JobState


@click.command()
@click.argument("job")
@takes_endpoint
@click.pass_obj
def command(session: Session, endpoint: Endpoint, job: str) -> None:
    """Show the progress of a job's replicas until it is over.

    The exit status is 0 if the job succeeded, 1 otherwise, 130 after Ctrl-C (the job goes on).
    """
    client = endpoint.client()
    uid = JobView.parse(find_job(client, job, endpoint.project)).uid
    try:
        over = watched(client, uid, session, lines=False)
    except KeyboardInterrupt:
        click.echo(f"The job goes on. Its lines: trainshed jobs logs -f {job}", err=True)
        raise SystemExit(130) from None
    state = click.style(over.state.value, fg=state_colour(over.state), bold=True)
    click.echo(f"{state} after {duration(over.lasted(session.now()))}")
    if over.error:
        click.echo(over.error)
    if over.state is not JobState.SUCCEEDED:
        raise SystemExit(1)


def watched(client: Client, uid: str, session: Session, *, lines: bool) -> JobView:
    """Show a job's progress until it is over, and return its last view. Raises Refused, Unreachable."""
    show(follow(client, uid, lines=True), session.now, lines=lines)
    return require_over(client, uid)
