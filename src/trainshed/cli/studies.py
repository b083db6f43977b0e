"""`trainshed studies`: the studies of the study API (Vizier), and their trials, through the public Vertex API."""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click

from trainshed.cli.client import Client
from trainshed.cli.colours import faint, study_colour
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, answering, takes_endpoint
from trainshed.cli.forms import takes_form
from trainshed.cli.moments import local_moment
from trainshed.cli.study_views import StudyView, study_table_rows
from trainshed.cli.tables import Column, joined, pairs, table
from trainshed.cli.trial_table import terminal_text, trial_table

_PAGE = 1000

_project = click.option(
    "--project", metavar="PROJECT", help="Whose studies; else the service's own."
)
_region = click.option("--region", metavar="REGION", help="Where they are; else the service's own.")


@click.group()
def command() -> None:
    """List and describe studies of the study API (Vizier). The trials of a tuning job: trainshed jobs describe."""


@command.command("list")
@_project
@_region
@takes_form
@takes_endpoint
def list_(endpoint: Endpoint, *, project: str | None, region: str | None, form: str) -> None:
    """List the studies, newest first."""
    client, parent = _place(endpoint, project, region, raw=form == "json")
    found = list(_pages(client, f"{parent}/studies", "studies"))
    if form == "json":
        click.echo(json.dumps(found, indent=2))
        return
    if not found:
        click.echo(f"No studies in {parent.removeprefix('/v1/')}.", err=True)
        return
    for line in study_table([StudyView.parse(study) for study in found], _room()):
        click.echo(line)


@command.command(short_help="Show a study's trials, the best of them above all.")
@click.argument("study")
@_project
@_region
@takes_form
@takes_endpoint
@click.pass_obj
def describe(
    session: Session,
    endpoint: Endpoint,
    *,
    study: str,
    project: str | None,
    region: str | None,
    form: str,
) -> None:
    """Show a study, the best of its trials and all the others. STUDY is its full name, its id, or its display name.

    Of a study with several metrics the best are those than which no other is better in all: the Pareto front.
    """
    client, parent = _place(endpoint, project, region, raw=form == "json")
    found = _find(client, parent, study)
    path = f"/v1/{found['name']}/trials"
    trials = list(_pages(client, path, "trials"))
    optimal: list[dict[str, Any]] = client.post(f"{path}:listOptimalTrials", {}).get(
        "optimalTrials", []
    )
    if form == "json":
        click.echo(json.dumps(found | {"trials": trials, "optimalTrials": optimal}, indent=2))
        return
    view = StudyView.parse(found)
    for line in description(view, trials, optimal, session.now(), _room()):
        click.echo(line)


def study_table(studies: Sequence[StudyView], room: int | None) -> list[str]:
    """The lines of a list of studies."""
    columns = (
        Column("STUDY"),
        Column("NAME", flexible=True),
        Column("STATE"),
        Column("METRICS"),
        Column("ALGORITHM"),
        Column("CREATED"),
    )
    rows = [
        (
            study.id,
            study.display_name,
            study.state.value,
            study.aims,
            study.algorithm,
            local_moment(study.created),
        )
        for study in studies
    ]
    header, *cells = table(columns, rows, room)
    lines = [faint(joined(header))]
    for study, row in zip(studies, cells, strict=True):
        row[2] = click.style(row[2], fg=study_colour(study.state))
        lines.append(joined(row))
    return lines


def description(
    study: StudyView,
    trials: Sequence[Mapping[str, Any]],
    optimal: Sequence[Mapping[str, Any]],
    now: int,
    room: int | None,
) -> Iterator[str]:
    """The lines that describe a study."""
    best = [int(trial["id"]) for trial in optimal]
    rows = study_table_rows(study, trials, best)
    facts = [
        ("Study", study.name),
        ("Name", study.display_name),
        ("State", click.style(study.state.value, fg=study_colour(study.state), bold=True)),
        ("Because", study.inactive_reason),
        ("Created", local_moment(study.created)),
        ("Metrics", study.aims),
        ("Algorithm", study.algorithm),
        ("Trials", rows.counts),
        ("Best", "\n".join(rows.best)),
    ]
    yield from pairs([(label, value) for label, value in facts if value])
    if rows.trials:
        yield ""
        for line in trial_table(study.metrics[0][0], rows.trials, best, now, room):
            yield terminal_text(line)


def _find(client: Client, parent: str, study: str) -> dict[str, Any]:
    if "/" in study:
        return client.get(f"/v1/{quote(study)}")
    if study.isdecimal():
        return client.get(f"{parent}/studies/{study}")
    return client.post(f"{parent}/studies:lookup", {"displayName": study})


def _pages(client: Client, path: str, field: str) -> Iterator[dict[str, Any]]:
    token: str | None = None
    while True:
        page = client.get(path, pageSize=_PAGE, pageToken=token)
        yield from page.get(field, ())
        token = page.get("nextPageToken")
        if not token:
            return


def _place(
    endpoint: Endpoint, project: str | None, region: str | None, *, raw: bool
) -> tuple[Client, str]:
    if not (project or endpoint.project) or not (region or endpoint.region):
        endpoint = answering(endpoint)
    project, region = project or endpoint.project, region or endpoint.region
    if not project or not region:
        raise click.UsageError("Whose studies, and where? Give --project and --region.")
    return endpoint.client(raw=raw), f"/v1/projects/{quote(project)}/locations/{quote(region)}"


def _room() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
