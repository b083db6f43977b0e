"""`trainshed console`: prints a link that signs a browser in to the service's console."""

import webbrowser

import click

from trainshed.cli.actions import Actions, takes_actions
from trainshed.cli.client import Refused
from trainshed.cli.connection import Endpoint, takes_endpoint


@click.command(short_help="Print a link that opens the web console.")
@click.option("--open", "opens", is_flag=True, help="Open the link in a browser.")
@takes_actions
@takes_endpoint
def command(endpoint: Endpoint, *, actions: Actions, opens: bool) -> None:
    """Print a link that signs a browser in to the console of the service.

    The link is good once, for 15 minutes, with the rights of the token that this command uses.
    """
    uri = str(endpoint.client().post("/login/link", {})["uri"])
    actions.did("link", uri, "made", uri)
    if opens and not webbrowser.open(uri):
        raise Refused(0, "No browser was found on this machine; open the link above in one.")
