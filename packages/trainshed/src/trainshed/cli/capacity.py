"""`trainshed nodes` drains and undrains nodes; `trainshed quotas` sets and clears what a project may use.
`trainshed list` lists both."""

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import click

from trainshed.cli.client import Client
from trainshed.cli.connection import Endpoint, place_of, takes_endpoint
from trainshed.cli.groups import Group
from trainshed.cli.output import Actions, takes_actions
from trainshed.core.capacity import NodeCondition
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
@takes_actions
@takes_endpoint
def drain(endpoint: Endpoint, *, actions: Actions, node: str, reason: str, wait: bool) -> None:
    """Drain NODE for maintenance: it takes no more work, and what runs there is asked to leave.

    Its replicas get SIGTERM and their grace time, and are started again on other nodes.
    """
    client = endpoint.client(raw=actions.as_data)
    answer = client.post(_path(node, ":drain"), {"reason": reason})
    drained = read(answer, Node)
    actions.say(f"{node}  takes no more work; {_running(drained)}")
    if not wait:
        actions.did("node", node, "drained", record=answer)
        return
    try:
        for line in leaving(client, drained):
            actions.say(line)
    except KeyboardInterrupt:
        click.echo(
            f"{node} stays drained. It is given back with: trainshed nodes undrain {node}", err=True
        )
        actions.did("node", node, "drained", record=answer)
        raise SystemExit(130) from None

    def now() -> dict[str, Any]:
        nodes: list[dict[str, Any]] = client.get(_NODES)["nodes"]
        return next((record for record in nodes if record["name"] == node), {"name": node})

    actions.did("node", node, "free", f"{node}  is free", record=now)


@nodes.command()
@click.argument("node")
@takes_actions
@takes_endpoint
def undrain(endpoint: Endpoint, *, actions: Actions, node: str) -> None:
    """Let NODE take work again."""
    answer = endpoint.client(raw=actions.as_data).post(_path(node, ":undrain"), {})
    undrained = read(answer, Node)
    why, sentence = "", f"{node}  takes work again"
    if undrained.condition != NodeCondition.READY:
        why = undrained.cause or "it is not there now"
        sentence = f"{node}  is not drained any more, and takes no work yet: {why}"
    actions.did("node", node, "undrained", sentence, record=answer, why=why)


def leaving(client: Client, node: Node) -> Iterator[str]:
    """Yield a line for each replica on a drained node, and one when it has left, until none is there. Polls.

    Raises click.ClickException if somebody undrains the node meanwhile; Refused, Unreachable.
    """
    replicas = _holders(node)
    for job, replica in replicas:
        yield f"  {replica} of {job}  is leaving"
    while replicas:
        time.sleep(_LOOK_AGAIN)
        nodes = read(client.get(_NODES), NodeList).nodes
        current = next((other for other in nodes if other.name == node.name), None)
        if current is not None and current.condition == NodeCondition.READY:
            raise click.ClickException(
                f"{node.name} was let take work again meanwhile; what has not left stays there."
            )
        remaining = _holders(current) if current else {}
        for job, replica in replicas:
            if (job, replica) not in remaining:
                yield f"  {replica} of {job}  has left"
        replicas = remaining


def _holders(node: Node) -> dict[tuple[str, str], None]:
    """Return (job, replica) of each replica on a node, in their order."""
    return dict.fromkeys((holder.job, holder.replica) for holder in node.replicas or ())


def _path(node: str, verb: str) -> str:
    return f"{_NODES}/{quote(node, safe='')}{verb}"


def _running(node: Node) -> str:
    count = len(_holders(node))
    if not count:
        return "nothing runs there"
    return (
        f"{count} replica{'s' * (count != 1)} there {'are' if count != 1 else 'is'} asked to leave"
    )


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
def quotas() -> None:
    """Set what a project may use at once in a region. Without a command: list the quotas that are set, used
    or waited for.

    A job for which no quota is left waits. A job that runs goes on, whatever is set.
    """


@quotas.command(
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
