"""`trainshed nodes` drains and undrains nodes; `trainshed quotas` sets quotas. `trainshed list` shows
both."""

import time
from typing import Any
from urllib.parse import quote

import click

from trainshed.cli.client import Client
from trainshed.cli.commands import Group
from trainshed.cli.connection import Endpoint, endpoint_options, place_of, place_options
from trainshed.cli.resources import number
from trainshed.cli.text.moments import counted
from trainshed.core.capacity import NodeCondition
from trainshed.core.catalog.quotas import GLOBAL
from trainshed.wire.trainshed_v1.capacity import Node, NodeList, PlacedQuota
from trainshed.wire.trainshed_v1.record import read

_NODES = "/trainshed/v1/nodes"
_POLL_INTERVAL = 0.5
"""Seconds between two polls of `drain --wait`."""


@click.group(cls=Group)
def nodes() -> None:
    """Drain nodes for maintenance. Without a command: list them."""


@nodes.command(short_help="Move all work off a node for maintenance.")
@click.argument("node")
@click.option(
    "--reason",
    metavar="TEXT",
    default="",
    help="Reason for the maintenance, for users whose jobs run on the node.",
)
@click.option("--wait", is_flag=True, help="Wait until no replica runs on the node.")
@click.option("--undo", is_flag=True, help="Undo a drain: allow new work on the node again.")
@endpoint_options
def drain(endpoint: Endpoint, *, node: str, reason: str, wait: bool, undo: bool) -> None:
    """Drain NODE for maintenance: it accepts no new work, and its replicas are stopped. The replicas receive
    SIGTERM, have their grace period, and restart on other nodes."""
    client = endpoint.client()
    if undo:
        _undrain(client, node)
        return
    drained = read(client.post(_path(node, ":drain"), {"reason": reason}), Node)
    click.echo(f"{node}  accepts no new work; {_running(drained)}")
    if not wait:
        return
    try:
        _wait_until_free(client, node)
    except KeyboardInterrupt:
        click.echo(f"{node} stays drained. To undo it: trainshed nodes drain {node} --undo", err=True)
        raise SystemExit(130) from None
    click.echo(f"{node}  is free")


def _undrain(client: Client, node: str) -> None:
    undrained = read(client.post(_path(node, ":undrain"), {}), Node)
    if undrained.condition == NodeCondition.READY:
        click.echo(f"{node}  accepts work again")
        return
    why = undrained.cause or "the node is not available"
    click.echo(f"{node}  is no longer drained, but accepts no work yet: {why}")


def _wait_until_free(client: Client, name: str) -> None:
    """Poll until no replica runs on a drained node. Raises click.ClickException if a user undrains the node
    in the meantime, and RequestError or Unreachable."""
    while True:
        nodes = read(client.get(_NODES), NodeList).nodes
        node = next((other for other in nodes if other.name == name), None)
        if node is None or not node.replicas:
            return
        if node.condition == NodeCondition.READY:
            raise click.ClickException(
                f"{name} was undrained while this command waited. The remaining replicas continue to run "
                f"there. To drain it again: trainshed nodes drain {name} --wait"
            )
        time.sleep(_POLL_INTERVAL)


def _path(node: str, verb: str) -> str:
    return f"{_NODES}/{quote(node, safe='')}{verb}"


def _running(node: Node) -> str:
    count = len(node.replicas or ())
    if not count:
        return "no replica is on it"
    return f"{counted(count, 'replica')} on it {'is' if count == 1 else 'are'} stopping"


_UNLIMITED = "unlimited"


def _limit(context: click.Context, parameter: click.Parameter, value: str) -> float | str:
    """Parse a limit: a number that is at least 0, or `unlimited`."""
    if value == _UNLIMITED:
        return value
    try:
        limit = float(value)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise click.BadParameter(
            f"{value!r} is not a limit. Write a number that is at least 0, or {_UNLIMITED!r}."
        )
    return limit


@click.group(cls=Group)
def quotas() -> None:
    """Limit the use of a project, or of a user in it, in a region. Without a command: list the quotas that
    are set or in use, and those that jobs wait for. A job that exceeds a quota waits. Running jobs continue
    when a quota changes."""


@quotas.command(
    "set",
    short_help="Set a limit for the jobs of a project.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("metric")
@click.argument("limit", callback=_limit)
@place_options("quota")
@click.option(
    "--user",
    metavar="EMAIL",
    default="",
    help="Limit one user, or `each`: every user without a limit of their own. Default: the whole project.",
)
@endpoint_options
def set_(endpoint: Endpoint, *, metric: str, limit: float | str, user: str) -> None:
    """Limit the use of METRIC by jobs to LIMIT: a number, or `unlimited`.

    Most metrics count the current use. Metrics that end with _per_month are budgets: when a budget is used
    up, no job starts until the next month. A budget with _hard also stops running jobs, which then wait. Jobs
    that exceed queued_jobs or highest_priority are rejected.
    """
    wanted: dict[str, Any] = {**place_of(endpoint), "metric": metric, "user": user, "limit": limit}
    quota = read(endpoint.client().post("/trainshed/v1/quotas:set", wanted), PlacedQuota)
    whose = f"{quota.user} of " if quota.user else ""
    where = "" if quota.region == GLOBAL else f" in {quota.region}"
    click.echo(
        f"{quota.metric}  {number(quota.limit)} for {whose}{quota.project}{where}, {number(quota.used)} used"
    )
