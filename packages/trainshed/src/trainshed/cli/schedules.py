"""`trainshed schedules` pauses and resumes schedules of pipeline jobs. `trainshed list`, `describe` and
`delete` do the rest."""

import click

from trainshed.cli.commands import Group
from trainshed.cli.connection import Endpoint, endpoint_options, place_of, place_options
from trainshed.cli.resources import KINDS, Place
from trainshed.cli.text.moments import local_moment, parse_moment


@click.group(cls=Group)
def command() -> None:
    """Pause and resume schedules of pipeline jobs. Without a command: list them.

    Create a schedule with trainshed run --schedule, or with the SDK. SCHEDULE is an ID, a full name or a
    display name.
    """


@command.command()
@click.argument("schedule")
@place_options("schedule")
@endpoint_options
def pause(endpoint: Endpoint, schedule: str) -> None:
    """Pause a schedule: it starts no further runs. Runs that have started continue."""
    place = Place(endpoint.client(), **place_of(endpoint))
    name = place.describe(KINDS["schedules"], schedule)["name"]
    place.client.post(f"/v1/{name}:pause", {})
    click.echo(f"{name}  is paused")


@command.command()
@click.argument("schedule")
@click.option("--catch-up", is_flag=True, help="Also start the runs that the pause has skipped.")
@place_options("schedule")
@endpoint_options
def resume(endpoint: Endpoint, *, schedule: str, catch_up: bool) -> None:
    """Resume a paused schedule, and print the time of its next run."""
    place = Place(endpoint.client(), **place_of(endpoint))
    name = place.describe(KINDS["schedules"], schedule)["name"]
    place.client.post(f"/v1/{name}:resume", {"catchUp": catch_up})
    upcoming = parse_moment(place.client.get(f"/v1/{name}").get("nextRunTime", ""))
    click.echo(f"{name}  is active; next run: {local_moment(upcoming)}")
