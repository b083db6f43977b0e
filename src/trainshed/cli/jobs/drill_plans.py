"""`trainshed drill-plans`: stores drills under a name, by which any client orders them with the label
`trainshed-drill`."""

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import click

from trainshed.cli.actions import Actions, takes_actions
from trainshed.cli.connection import Endpoint, answering, takes_endpoint
from trainshed.cli.groups import ListGroup
from trainshed.cli.jobs import job_files
from trainshed.cli.output_format import output_format, print_data, takes_form
from trainshed.cli.text.tables import Column, titled
from trainshed.core.lifecycle.drills import PLAN_LABEL
from trainshed.wire.trainshed_v1.drills import DrillOrder, DrillPlan, DrillPlanList
from trainshed.wire.trainshed_v1.record import read

_PLANS = "/trainshed/v1/drillPlans"

_project = click.option(
    "--project", metavar="PROJECT", help="Project of the plans. Default: the service's."
)


@click.group(cls=ListGroup)
def command() -> None:
    """Store drills under a name. Without a command: list them.

    A job that is created with the label trainshed-drill=NAME orders them, whatever client creates it.
    """


@command.command("list")
@_project
@takes_form
@takes_endpoint
def list_(endpoint: Endpoint, project: str | None, form: str) -> None:
    """List the plans of a project."""
    client = endpoint.client(raw=form == "json")
    answer = client.get(_PLANS, project=_whose(endpoint, project))
    if form == "json":
        print_data(answer["plans"])
        return
    plans = read(answer, DrillPlanList)
    if not plans.plans:
        click.echo(
            f"The project {plans.project} has no drill plan. Store one: trainshed drill-plans put FILE",
            err=True,
        )
        return
    for line in plan_table(plans.plans):
        click.echo(line)


@command.command()
@click.argument("name")
@_project
@output_format("table", "Output as JSON or YAML, which `put` takes, or as a table.", default="json")
@takes_endpoint
def show(endpoint: Endpoint, *, name: str, project: str | None, form: str) -> None:
    """Print a plan as `put` takes it."""
    path = f"{_PLANS}/{quote(name, safe='')}"
    client = endpoint.client(raw=form == "json")
    plan = client.get(path, project=_whose(endpoint, project))
    if form == "json":
        print_data(plan)
        return
    for line in plan_table([read(plan, DrillPlan)]):
        click.echo(line)


@command.command(short_help="Store a plan from a file, replacing one of that name.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option("--name", metavar="NAME", help="Name of the plan. Default: from the file.")
@_project
@takes_actions
@takes_endpoint
def put(
    endpoint: Endpoint, *, actions: Actions, file: Path, name: str | None, project: str | None
) -> None:
    """Store the plan in FILE (YAML or JSON, - for standard input), replacing one of that name.

    A plan: {name: worse, drills: [{kind: kill, replica: workerpool1-0, atLine: "step 12$"}, {kind:
    maintenance, after: 30s}]}
    """
    try:
        with click.open_file(str(file)) as opened:
            plan = job_files.read(opened.read())
    except job_files.Unreadable as failure:
        raise click.ClickException(f"{file}: {failure}") from None
    except (OSError, UnicodeDecodeError) as failure:
        cause = failure.strerror if isinstance(failure, OSError) else failure
        raise click.ClickException(f"{file} cannot be read: {cause}") from None
    plan["name"] = name or plan.get("name") or ("" if str(file) == "-" else file.stem)
    if not plan["name"]:
        raise click.UsageError("A plan that comes in needs a name: give --name, or `name:` in it.")
    plan["project"] = project or plan.get("project") or _whose(endpoint, None)
    answer = endpoint.client(raw=actions.as_data).post(_PLANS, plan)
    stored = read(answer, DrillPlan)
    told = f"Stored. A job orders it with the label {PLAN_LABEL}={stored.name}"
    actions.did("drillPlan", stored.name, "stored", told, record=answer)


@command.command()
@click.argument("name")
@_project
@takes_actions
@takes_endpoint
def delete(endpoint: Endpoint, *, actions: Actions, name: str, project: str | None) -> None:
    """Delete a plan. Jobs that exist keep the drills that they have."""
    path = f"{_PLANS}/{quote(name, safe='')}"
    endpoint.client().delete(path, project=_whose(endpoint, project))
    actions.did("drillPlan", name, "deleted", f"{name}  is deleted")


def plan_table(plans: Iterable[DrillPlan]) -> list[str]:
    """Return the lines of a table of plans, one line per drill."""
    columns = (Column("PLAN"), Column("KIND"), Column("REPLICA"), Column("WHEN"))
    rows = [
        (
            "" if number else plan.name,
            drill.kind,
            drill.replica,
            _when(drill),
        )
        for plan in plans
        for number, drill in enumerate(plan.drills)
    ]
    return titled(columns, rows)


def _when(drill: DrillOrder) -> str:
    if drill.at_line:
        return f"at a line like {drill.at_line}"
    return f"after {drill.after}" if drill.after else "at once"


def _whose(endpoint: Endpoint, project: str | None) -> str:
    return project or endpoint.project or answering(endpoint).project
