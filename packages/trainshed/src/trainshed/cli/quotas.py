"""`trainshed quotas`: sets and clears limits of what a project may use, which `trainshed list` shows."""

from typing import Any

import click

from trainshed.cli.actions import Actions, takes_actions
from trainshed.cli.connection import Endpoint, place_of, takes_endpoint
from trainshed.cli.groups import Group
from trainshed.wire.trainshed_v1.capacity import PlacedQuota
from trainshed.wire.trainshed_v1.record import read

_QUOTAS = "/trainshed/v1/quotas"
_UNLIMITED = "unlimited"


def _limit(context: click.Context, parameter: click.Parameter, value: str) -> float | str:
    """Parse a limit: a number of at least 0, or `unlimited`."""
    if value == _UNLIMITED:
        return value
    try:
        limit = float(value)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise click.BadParameter(f"{value!r} is not a number of at least 0, nor {_UNLIMITED!r}.")
    return limit


_project = click.option("--project", metavar="PROJECT", help="Project. Default: the service's.")
_region = click.option("--region", metavar="REGION", help="Region. Default: the service's.")


@click.group(cls=Group)
def command() -> None:
    """Set what a project may use at once in a region. Without a command: list the quotas that are set, used
    or waited for.

    A job for which no quota is left waits. A job that runs goes on, whatever is set.
    """


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
    wanted: dict[str, Any] = {
        **place_of(endpoint, project, region),
        "metric": metric,
        "limit": limit,
    }
    answer = endpoint.client(raw=actions.as_data).post(f"{_QUOTAS}:set", wanted)
    quota = read(answer, PlacedQuota)
    message = (
        f"{quota.metric}  {_number(quota.limit)} for {quota.project} in"
        f" {quota.region}, {_number(quota.used)} used"
    )
    actions.did("quota", quota.metric, "set", message, record=answer)


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.10g}"
