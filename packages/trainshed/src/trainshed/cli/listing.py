"""`trainshed list`, `describe` and `delete` for every kind of thing in `cli.resources`."""

import csv
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import click

from trainshed.cli.connection import Endpoint, endpoint_options, place_of, place_options, service_options
from trainshed.cli.jobs.references import find_job
from trainshed.cli.jobs.views import JobView
from trainshed.cli.output import output_format, print_data, terminal_width, yaml_text
from trainshed.cli.resources import KINDS, Kind, Place, machine_type_records
from trainshed.cli.text.moments import since
from trainshed.cli.text.tables import table_of


class _KindName(click.ParamType[Kind]):
    """A click parameter type. It converts the name of a kind of resource, plural or singular, to the kind.
    `fits`: returns whether the command accepts a kind."""

    name = "kind"

    def __init__(self, fits: Callable[[Kind], object]) -> None:
        self._kinds = {name: kind for name, kind in KINDS.items() if fits(kind)}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Kind:
        """Return the kind with this name. Fails with the list of kinds."""
        if isinstance(value, Kind):
            return value
        for name, kind in self._kinds.items():
            if value in (name, name.removesuffix("s"), f"{name.removesuffix('ies')}y"):
                return kind
        jobs = f"trainshed jobs {ctx.info_name if ctx else ''}".rstrip()
        raise click.BadParameter(
            f"{value!r} is not a KIND that this command supports. The kinds are {', '.join(self._kinds)}. "
            f"For jobs: {jobs}.",
            ctx,
            param,
        )


_takes_place = place_options("things")


@click.command("list", short_help="List datasets, experiments, models, nodes, secrets, tokens and more.")
@click.argument("kind", type=_KindName(lambda kind: kind.list_path or kind.local))
@click.option(
    "--all", "every", is_flag=True, help="Include old pipeline jobs, and quotas neither set nor used."
)
@click.option(
    "--by", metavar="WHAT", help="Group usage by user, project, node, machine or labels.KEY. Default: user."
)
@click.option(
    "--since",
    metavar="WHEN",
    callback=since,
    help="Count usage from this time: 2026-11-01T00:00:00Z, or 30d. Default: this month.",
)
@_takes_place
@output_format(
    "table", "Output as a table, as JSON (a line each: jsonl), YAML or CSV.", more=("jsonl", "csv")
)
@service_options
def list_(
    service: Callable[[], Endpoint], *, kind: Kind, every: bool, by: str | None, since: str | None, form: str
) -> None:
    """List all things of a KIND: audit (changes by users), datasets, experiments, grants (roles of members),
    machine-types, models, nodes, pipelines (pipeline jobs), projects, quotas, schedules, secrets, studies,
    tokens or usage (of people and projects). `trainshed KIND list` is the same.

    --format json prints all fields. Jobs: trainshed jobs list.
    """
    wanted = {name: value for name, value in (("by", by), ("since", since)) if value}
    if wanted and kind.name != "usage":
        raise click.UsageError(
            f"--{min(wanted)} is an option of usage, not of {kind.name}. Use it with: trainshed usage list"
        )
    place = None if kind.local else _place(kind, service(), raw=form in ("json", "jsonl"))
    records = place.records(kind, every=every, wanted=wanted) if place else machine_type_records()
    if form == "json":
        print_data(records)
        return
    if form == "jsonl":
        for record in records:
            print_data(record, stream=True)
        return
    if form == "csv":
        rows = csv.writer(sys.stdout, lineterminator="\n")
        rows.writerow([field.title for field in kind.fields])
        rows.writerows([field.cell(record) for field in kind.fields] for record in records)
        return
    if not records:
        of_whom = f" of {place}" if kind.is_placed else ""
        there_are = "There are no" if kind.name.endswith("s") else "There is no"
        click.echo(f"{there_are} {kind.name}{of_whom}. {kind.none or ''}".rstrip(), err=True)
        return
    for line in table_of(kind.fields, records, terminal_width()):
        click.echo(line)
    if len(records) == kind.newest and not every:
        click.echo(f"These are the newest {kind.newest}. To show all: --all", err=True)


@click.command(short_help="Show all details of a model, node or study.")
@click.argument("kind", type=_KindName(lambda kind: True))
@click.argument("name")
@_takes_place
@output_format("text", "Output as text, which is YAML, or as JSON or YAML for programs.")
@service_options
def describe(service: Callable[[], Endpoint], *, kind: Kind, name: str, form: str) -> None:
    """Show all details of NAME, a thing of a KIND. NAME is an ID, a full name or a display name. `trainshed
    KIND describe NAME` is the same.

    The kinds are those of trainshed list. If KIND is curves or usage, NAME is a job: curves shows the values
    that its programs logged as summaries, usage the resources that its replicas use and have used.
    """
    if kind.local:
        record = next((made for made in machine_type_records() if made["name"] == name), None)
        if record is None:
            raise click.ClickException(
                f"{name!r} does not exist among the {kind.name}. List them: trainshed list {kind.name}"
            )
    elif kind.of_job:
        endpoint = service()
        client = endpoint.client(raw=form == "json")
        job = JobView.parse(find_job(client, name, endpoint.project))
        record = Place(client, "", "").get(kind, attrgetter(kind.of_job)(job))
    else:
        record = _place(kind, service(), raw=form == "json").describe(kind, name)
    if form == "json":
        print_data(record)
    else:
        click.echo(yaml_text(record))


@click.command(short_help="Delete a dataset, model, pipeline job, schedule, secret, study or token.")
@click.argument("kind", type=_KindName(lambda kind: kind.delete_path))
@click.argument("name", nargs=-1, required=True)
@_takes_place
@endpoint_options
def delete(endpoint: Endpoint, *, kind: Kind, name: tuple[str, ...]) -> None:
    """Delete the things NAME of a KIND: datasets, models, pipelines (pipeline jobs), schedules, secrets,
    studies or tokens. `trainshed KIND delete NAME` is the same.

    NAME is an ID or a full name. NAME@N is one version of a model or secret. An e-mail address deletes all
    tokens of that user. Running programs keep their secrets; jobs that name a deleted secret fail when they
    start.
    """
    place = _place(kind, endpoint, raw=False)
    for target in name:
        place.delete(kind, target)
        is_person = kind.name == "tokens" and "@" in target
        gone = "has no tokens any more; the roles remain (trainshed list grants)"
        click.echo(f"{target}  {gone if is_person else 'is deleted'}")


def _place(kind: Kind, endpoint: Endpoint, *, raw: bool) -> Place:
    at = place_of(endpoint) if kind.is_placed else {"project": "", "region": ""}
    return Place(endpoint.client(raw=raw), **at)
