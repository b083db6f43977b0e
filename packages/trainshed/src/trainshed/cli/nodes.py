"""`trainshed nodes`: drains and undrains nodes, which `trainshed list` lists. Replicas on a drained node are
asked to end, and are started on other nodes."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import click

from trainshed.cli.actions import Actions, takes_actions
from trainshed.cli.client import Client
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.groups import Group
from trainshed.cli.jobs.references import completing
from trainshed.core.capacity import NodeCondition
from trainshed.wire.trainshed_v1 import capacity
from trainshed.wire.trainshed_v1.record import read

_NODES = "/trainshed/v1/nodes"
_LOOK_AGAIN = 0.5
"""Seconds between two requests while `drain --wait` waits."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that is drained."""

    name: str
    condition: NodeCondition
    #: (job, replica) of each replica on it.
    replicas: tuple[tuple[str, str], ...]

    @staticmethod
    def parse(answer: Mapping[str, Any]) -> "NodeView":
        """Read one of the `nodes`. Raises ValueError for something else."""
        node = read(answer, capacity.Node)
        return NodeView(
            node.name,
            NodeCondition(node.condition or ""),
            tuple((holder.job, holder.replica) for holder in node.replicas or ()),
        )


@click.group(cls=Group)
def command() -> None:
    """Drain nodes for maintenance. Without a command: list them."""


@command.command(short_help="Move all work off a node for maintenance.")
@click.argument("node", shell_complete=completing("nodes"))
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
    drained = NodeView.parse(answer)
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


@command.command()
@click.argument("node", shell_complete=completing("nodes"))
@takes_actions
@takes_endpoint
def undrain(endpoint: Endpoint, *, actions: Actions, node: str) -> None:
    """Let NODE take work again."""
    answer = endpoint.client(raw=actions.as_data).post(_path(node, ":undrain"), {})
    undrained = read(answer, capacity.Node)
    why, sentence = "", f"{node}  takes work again"
    if undrained.condition != NodeCondition.READY:
        why = undrained.cause or "it is not there now"
        sentence = f"{node}  is not drained any more, and takes no work yet: {why}"
    actions.did("node", node, "undrained", sentence, record=answer, why=why)


def leaving(client: Client, node: NodeView) -> Iterator[str]:
    """Yield a line for each replica on a drained node, and one when it has left, until none is there. Polls.

    Raises click.ClickException if somebody undrains the node meanwhile; Refused, Unreachable.
    """
    replicas = dict.fromkeys(node.replicas)
    for job, replica in replicas:
        yield f"  {replica} of {job}  is leaving"
    while replicas:
        time.sleep(_LOOK_AGAIN)
        nodes = map(NodeView.parse, client.get(_NODES)["nodes"])
        current = next((view for view in nodes if view.name == node.name), None)
        if current is not None and current.condition is NodeCondition.READY:
            raise click.ClickException(
                f"{node.name} was let take work again meanwhile; what has not left stays there."
            )
        remaining = dict.fromkeys(current.replicas if current else ())
        for job, replica in replicas:
            if (job, replica) not in remaining:
                yield f"  {replica} of {job}  has left"
        replicas = remaining


def _path(node: str, verb: str) -> str:
    return f"{_NODES}/{quote(node, safe='')}{verb}"


def _running(node: NodeView) -> str:
    count = len(node.replicas)
    if not count:
        return "nothing runs there"
    return (
        f"{count} replica{'s' * (count != 1)} there {'are' if count != 1 else 'is'} asked to leave"
    )
