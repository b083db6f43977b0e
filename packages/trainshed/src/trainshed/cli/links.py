"""`trainshed tensorboard` and `console`: print links that open in a browser."""

import webbrowser

import click

from trainshed.cli.client import Refused
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.references import find_job, job_path, takes_jobs
from trainshed.wire.trainshed_v1.jobs import ViewLink
from trainshed.wire.trainshed_v1.record import read


@click.command(short_help="Open TensorBoard for what jobs wrote.")
@takes_jobs
@click.option("--open", "opens", is_flag=True, help="Open the link in a browser.")
@takes_endpoint
def tensorboard(endpoint: Endpoint, job: tuple[str, ...], *, opens: bool) -> None:
    """Print the link to TensorBoard for the event files of a job, or of several beside each other.

    TensorBoard is installed when it is first opened, started when the link is opened, and ended when nobody
    has looked for ten minutes. Whoever has the link can look.
    """
    client = endpoint.client()
    first, *others = (find_job(client, name, endpoint.project)["uid"] for name in job)
    link = read(client.post(job_path(first, ":tensorboard"), {"others": others}), ViewLink)
    if not link.has_files:
        click.echo(f"There are no event files in {', '.join(link.directories)} yet.", err=True)
    _show(link.uri, opens=opens)


@click.command(short_help="Print a link that opens the web console.")
@click.option("--open", "opens", is_flag=True, help="Open the link in a browser.")
@takes_endpoint
def console(endpoint: Endpoint, *, opens: bool) -> None:
    """Print a link that signs a browser in to the console of the service.

    The link is good once, for 15 minutes, with the rights of the token that this command uses.
    """
    _show(str(endpoint.client().post("/login/link", {})["uri"]), opens=opens)


def _show(uri: str, *, opens: bool) -> None:
    click.echo(uri)
    if opens and not webbrowser.open(uri):
        raise Refused(0, "No browser was found on this machine; open the link above in one.")
