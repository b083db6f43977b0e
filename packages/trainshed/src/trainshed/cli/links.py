"""`trainshed tensorboard` and `console`: print links that open in a browser."""

import webbrowser

import click

from trainshed.cli.client import RequestError
from trainshed.cli.connection import Endpoint, endpoint_options
from trainshed.cli.jobs.references import find_job, job_path, jobs_argument
from trainshed.wire.trainshed_v1.jobs import ViewLink
from trainshed.wire.trainshed_v1.record import read


@click.command(short_help="Open TensorBoard for the event files of jobs.")
@jobs_argument
@click.option("--open", "opens", is_flag=True, help="Open the link in a browser.")
@endpoint_options
def tensorboard(endpoint: Endpoint, job: tuple[str, ...], *, opens: bool) -> None:
    """Print the link to TensorBoard for the event files of one job or more.

    TensorBoard is installed at its first use. It starts when the link is opened, and stops after ten minutes
    without a view. The link gives access to everyone who has it.
    """
    client = endpoint.client()
    first, *others = (find_job(client, name, endpoint.project)["uid"] for name in job)
    link = read(client.post(job_path(first, ":tensorboard"), {"others": others}), ViewLink)
    if not link.has_files:
        click.echo(f"No event files exist yet in {', '.join(link.directories)}.", err=True)
    _show(link.uri, opens=opens)


@click.command(short_help="Print a link that opens the web console.")
@click.option("--open", "opens", is_flag=True, help="Open the link in a browser.")
@endpoint_options
def console(endpoint: Endpoint, *, opens: bool) -> None:
    """Print a link that signs a browser in to the console of the service. The link works once, within 15
    minutes, with the rights of the token that this command uses."""
    _show(str(endpoint.client().post("/login/link", {})["uri"]), opens=opens)


def _show(uri: str, *, opens: bool) -> None:
    click.echo(uri)
    if opens and not webbrowser.open(uri):
        raise RequestError(0, "No browser was found on this machine. Open the link above in a browser.")
