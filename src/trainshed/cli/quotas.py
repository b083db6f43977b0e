"""`trainshed quotas`: lists a project's quotas in a region with their use; sets and clears limits."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from trainshed.cli.actions import Actions, takes_actions
from trainshed.cli.connection import Endpoint, place_of, takes_endpoint
from trainshed.cli.groups import ListGroup
from trainshed.cli.output_format import print_data, takes_form
from trainshed.cli.text.colours import faint
from trainshed.cli.text.tables import Column, joined, table
from trainshed.wire.trainshed_v1.capacity import PlacedQuota, Quota, QuotaList
from trainshed.wire.trainshed_v1.record import read

_QUOTAS = "/trainshed/v1/quotas"
_UNLIMITED = "unlimited"


def _limit(context: click.Context, parameter: click.Parameter, value: str) -> float | str:
    """Parse a limit: a number of at least 0, or `unlimited`."""
    if value == _UNLIMITED:
        return _UNLIMITED
    try:
        limit = float(value)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise click.BadParameter(f"{value!r} is not a number of at least 0, nor {_UNLIMITED!r}.")
    return limit


_project = click.option("--project", metavar="PROJECT", help="Project. Default: the service's.")
_region = click.option("--region", metavar="REGION", help="Region. Default: the service's.")


@click.group(cls=ListGroup)
def command() -> None:
    """Show and set what a project may use at once in a region. Without a command: list the quotas.

    A job for which no quota is left waits. A job that runs goes on, whatever is set.
    """


@command.command("list")
@_project
@_region
@click.option("--all", "every", is_flag=True, help="Include quotas that are neither set nor used.")
@takes_form
@takes_endpoint
def list_(
    endpoint: Endpoint, *, project: str | None, region: str | None, every: bool, form: str
) -> None:
    """List the quotas that are set, used or waited for."""
    place = place_of(endpoint, project, region)
    answer = endpoint.client(raw=form == "json").get(
        _QUOTAS, **place, all="true" if every else None
    )
    listed = read(answer, QuotaList)
    quotas = [quota for quota in listed.quotas if every or _is_of_interest(quota)]
    if form == "json":
        shown = {quota.metric for quota in quotas}
        raw = [quota for quota in answer["quotas"] if quota["metric"] in shown]
        print_data(raw)
        return
    where = f"{listed.project} in {listed.region}"
    if not quotas:
        click.echo(
            f"No quota of {where} is set or used. Every metric: trainshed quotas list --all",
            err=True,
        )
        return
    click.echo(faint(f"Quotas of {where}"))
    for line in quota_table(quotas):
        click.echo(line)


@command.command(
    "set",
    short_help="Set the most that jobs may use at once.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("metric")
@click.argument("limit", callback=_limit)
@_project
@_region
@takes_actions
@takes_endpoint
def set_(
    endpoint: Endpoint,
    *,
    actions: Actions,
    metric: str,
    limit: float | str,
    project: str | None,
    region: str | None,
) -> None:
    """Let jobs use at most LIMIT of METRIC at a time: a number, or `unlimited`."""
    asked = {**place_of(endpoint, project, region), "metric": metric, "limit": limit}
    _change(endpoint, actions, "set", asked)


@command.command()
@click.argument("metric")
@_project
@_region
@takes_actions
@takes_endpoint
def clear(
    endpoint: Endpoint, *, actions: Actions, metric: str, project: str | None, region: str | None
) -> None:
    """Go back to the default of METRIC."""
    asked = {**place_of(endpoint, project, region), "metric": metric}
    _change(endpoint, actions, "clear", asked)


def quota_table(quotas: Sequence[Quota]) -> list[str]:
    """Return the lines of a table of quotas."""
    columns = (
        Column("METRIC"),
        Column("USED", right=True),
        Column("LIMIT", right=True),
        Column("WAITING", right=True),
        Column("FROM"),
    )
    rows = [
        (
            quota.metric,
            _number(quota.used),
            _number(quota.limit),
            _number(quota.waiting),
            quota.source,
        )
        for quota in quotas
    ]
    header, *cells = table(columns, rows)
    lines = [faint(joined(header))]
    for quota, row in zip(quotas, cells, strict=True):
        if _is_full(quota):
            row[1] = click.style(row[1], fg="red")
        if quota.waiting:
            row[3] = click.style(row[3], fg="yellow")
        lines.append(joined(row))
    return lines


def _change(endpoint: Endpoint, actions: Actions, verb: str, asked: Mapping[str, Any]) -> None:
    """Set or clear a quota, as `verb` says, and print the outcome."""
    answer = endpoint.client(raw=actions.as_data).post(f"{_QUOTAS}:{verb}", asked)
    quota = read(answer, PlacedQuota)
    default = "" if quota.source == "set" else " (the default)"
    told = (
        f"{quota.metric}  {_number(quota.limit)}{default} for {quota.project} in"
        f" {quota.region}, {_number(quota.used)} used"
    )
    outcome = "set" if verb == "set" else "cleared"
    actions.did("quota", quota.metric, outcome, told, record=answer)


def _is_of_interest(quota: Quota) -> bool:
    return bool(quota.used or quota.waiting or quota.source == "set")


def _is_full(quota: Quota) -> bool:
    return not isinstance(quota.limit, str) and quota.used >= quota.limit


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.10g}"
