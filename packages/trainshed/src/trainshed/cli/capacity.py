"""`trainshed nodes` drains nodes, and undoes that; `trainshed quotas` sets and clears what a project may use.
`trainshed list` lists both."""

import time
from typing import Any
from urllib.parse import quote

import click

from trainshed.cli.client import Client
from trainshed.cli.commands import Group
from trainshed.cli.connection import Endpoint, place_of, takes_endpoint, takes_place
from trainshed.cli.resources import number
from trainshed.cli.text.moments import counted
from trainshed.core.capacity import NodeCondition
from trainshed.core.catalog.quotas import GLOBAL
from trainshed.wire.trainshed_v1.capacity import Node, NodeList, PlacedQuota
from trainshed.wire.trainshed_v1.record import read

_NODES = "/trainshed/v1/nodes"
_LOOK_AGAIN = 0.5
"""Seconds between two requests while `drain --wait` waits."""


@click.group(cls=Group)
def nodes() -> None:
    """Drain nodes for maintenance. Without a command: list them."""


@nodes.command(short_help="Move all work off a node for maintenance.")
@click.argument("node")
@click.option("--reason", metavar="TEXT", default="", help="Reason shown to the jobs on the node.")
@click.option("--wait", is_flag=True, help="Wait until nothing runs on the node.")
@click.option("--undo", is_flag=True, help="Let the node take work again.")
@takes_endpoint
def drain(endpoint: Endpoint, *, node: str, reason: str, wait: bool, undo: bool) -> None:
    """Drain NODE for maintenance: it takes no more work, and what runs there is asked to leave.

    Its replicas get SIGTERM and their grace time, and are started again on other nodes.
    """
    client = endpoint.client()
    if undo:
        _undrain(client, node)
        return
    drained = read(client.post(_path(node, ":drain"), {"reason": reason}), Node)
    click.echo(f"{node}  takes no more work; {_running(drained)}")
    if not wait:
        return
    try:
        _wait_until_free(client, node)
    except KeyboardInterrupt:
        click.echo(
            f"{node} stays drained. It is given back with: trainshed nodes drain {node} --undo",
            err=True,
        )
        raise SystemExit(130) from None
    click.echo(f"{node}  is free")


def _undrain(client: Client, node: str) -> None:
    undrained = read(client.post(_path(node, ":undrain"), {}), Node)
    if undrained.condition == NodeCondition.READY:
        click.echo(f"{node}  takes work again")
        return
    why = undrained.cause or "it is not there now"
    click.echo(f"{node}  is not drained any more, and takes no work yet: {why}")


def _wait_until_free(client: Client, name: str) -> None:
    """Look again and again until no replica is on a drained node. Raises click.ClickException if somebody
    undrains the node meanwhile; Refused, Unreachable."""
    while True:
        nodes = read(client.get(_NODES), NodeList).nodes
        node = next((other for other in nodes if other.name == name), None)
        if node is None or not node.replicas:
            return
        if node.condition == NodeCondition.READY:
            raise click.ClickException(
                f"{name} was let take work again meanwhile; what has not left stays there."
            )
        time.sleep(_LOOK_AGAIN)


def _path(node: str, verb: str) -> str:
    return f"{_NODES}/{quote(node, safe='')}{verb}"


def _running(node: Node) -> str:
    count = len(node.replicas or ())
    if not count:
        return "nothing runs there"
    return f"{counted(count, 'replica')} there {'is' if count == 1 else 'are'} asked to leave"


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


@click.group(cls=Group)
def quotas() -> None:
    """Set what a project, or a person in it, may use in a region. Without a command: list the quotas that
    are set, used or waited for.

    A job for which no quota is left waits. A job that runs goes on, whatever is set.
    """


@quotas.command(
    "set",
    short_help="Set the most that jobs may use.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("metric")
@click.argument("limit", callback=_limit)
@takes_place("quota")
@click.option(
    "--user", metavar="EMAIL", default="", help="Limit one person, or `each`: whoever has no limit."
)
@takes_endpoint
def set_(endpoint: Endpoint, *, metric: str, limit: float | str, user: str) -> None:
    """Let jobs use at most LIMIT of METRIC: a number, or `unlimited`.

    Most metrics are of what jobs hold at a time. Those whose names end with _per_month are budgets: when one
    is used up, nothing new starts until the next month. With _hard what runs stops, and waits, too.
    Beyond queued_jobs and highest_priority jobs are refused.
    """
    wanted: dict[str, Any] = {**place_of(endpoint), "metric": metric, "user": user, "limit": limit}
    quota = read(endpoint.client().post("/trainshed/v1/quotas:set", wanted), PlacedQuota)
    whose = f"{quota.user} of " if quota.user else ""
    where = "" if quota.region == GLOBAL else f" in {quota.region}"
    click.echo(
        f"{quota.metric}  {number(quota.limit)} for {whose}{quota.project}{where},"
        f" {number(quota.used)} used"
    )
