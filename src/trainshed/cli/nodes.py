"""`trainshed nodes`: lists nodes, drains and undrains them. Replicas on a drained node are asked to end, and
are started on other nodes."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import click

from trainshed.cli.actions import Actions, takes_actions
from trainshed.cli.client import Client
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.groups import ListGroup
from trainshed.cli.jobs.references import completing
from trainshed.cli.output_format import print_data, takes_form
from trainshed.cli.text.colours import condition_colour, faint
from trainshed.cli.text.moments import gibibytes
from trainshed.cli.text.tables import Column, joined, table, titled
from trainshed.core.capacity import NodeCondition
from trainshed.wire.trainshed_v1 import capacity
from trainshed.wire.trainshed_v1.record import read

_NODES = "/trainshed/v1/nodes"
_LOOK_AGAIN = 0.5
"""Seconds between two requests while `drain --wait` waits."""


@dataclass(frozen=True, slots=True)
class HolderView:
    """A replica that has accelerators of a node."""

    job: str
    replica: str
    accelerator: str
    accelerators: int
    #: UUIDs of the real GPUs that it was given.
    gpus: tuple[str, ...]

    @staticmethod
    def of(replica: capacity.NodeReplica) -> "HolderView":
        """Return the view of one of a node's `replicas`."""
        return HolderView(
            replica.job,
            replica.replica,
            replica.accelerator or "",
            replica.accelerators or 0,
            replica.gpus or (),
        )


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node, its resources, and what of them is used."""

    name: str
    condition: NodeCondition
    #: Why it is in this condition; "" = not said.
    cause: str
    vcpus: float
    used_vcpus: float
    memory_bytes: int
    used_memory_bytes: int
    #: (type, count, used) of each type.
    accelerators: tuple[tuple[str, int, int], ...]
    #: (job, replica) of each replica on it.
    replicas: tuple[tuple[str, str], ...]
    #: The replicas that have accelerators.
    holders: tuple[HolderView, ...] = ()
    #: What others than this service use of it, as text; "" = nothing.
    others: str = ""

    @staticmethod
    def parse(answer: Mapping[str, Any]) -> "NodeView":
        """Read one of the `nodes`. Raises ValueError for something else."""
        node = read(answer, capacity.Node)
        replicas = node.replicas or ()
        return NodeView(
            node.name,
            NodeCondition(node.condition or ""),
            node.cause or "",
            node.vcpus or 0,
            node.used_vcpus or 0,
            node.memory_bytes or 0,
            node.used_memory_bytes or 0,
            tuple((kind.type, kind.count, kind.used) for kind in node.accelerators or ()),
            tuple((holder.job, holder.replica) for holder in replicas),
            tuple(holder for holder in map(HolderView.of, replicas) if holder.accelerators),
            _others(node),
        )


@click.group(cls=ListGroup)
def command() -> None:
    """List nodes, and drain them for maintenance. Without a command: list them."""


@command.command("list")
@takes_form
@takes_endpoint
def list_(endpoint: Endpoint, form: str) -> None:
    """List the nodes with their condition, usage, replicas and accelerators."""
    answer: list[dict[str, Any]] = endpoint.client(raw=form == "json").get(_NODES)["nodes"]
    if form == "json":
        print_data(answer)
        return
    if not answer:
        click.echo("The service has no nodes now.", err=True)
        return
    nodes = [NodeView.parse(node) for node in answer]
    holders = holder_table(nodes)
    for line in [*node_table(nodes), *([""] if holders else []), *holders]:
        click.echo(line)


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
        return next((each for each in nodes if each["name"] == node), {"name": node})

    actions.did("node", node, "free", f"{node}  is free", record=now)


@command.command()
@click.argument("node", shell_complete=completing("nodes"))
@takes_actions
@takes_endpoint
def undrain(endpoint: Endpoint, *, actions: Actions, node: str) -> None:
    """Let NODE take work again."""
    answer = endpoint.client(raw=actions.as_data).post(_path(node, ":undrain"), {})
    undrained = read(answer, capacity.Node)
    why, told = "", f"{node}  takes work again"
    if undrained.condition != NodeCondition.READY:
        why = undrained.cause or "it is not there now"
        told = f"{node}  is not drained any more, and takes no work yet: {why}"
    actions.did("node", node, "undrained", told, record=answer, why=why)


def leaving(client: Client, node: NodeView) -> Iterator[str]:
    """Yield a line for each replica on a drained node, and one when it has left, until none is there. Polls.

    Raises click.ClickException if somebody undrains the node meanwhile; Refused, Unreachable.
    """
    replicas = dict.fromkeys(node.replicas)
    for job, replica in replicas:
        yield f"  {replica} of {job}  is leaving"
    while replicas:
        time.sleep(_LOOK_AGAIN)
        current = next((n for n in list_nodes(client) if n.name == node.name), None)
        if current is not None and current.condition is NodeCondition.READY:
            raise click.ClickException(
                f"{node.name} was let take work again meanwhile; what has not left stays there."
            )
        remaining = dict.fromkeys(current.replicas if current else ())
        for job, replica in replicas:
            if (job, replica) not in remaining:
                yield f"  {replica} of {job}  has left"
        replicas = remaining


def node_table(nodes: list[NodeView]) -> list[str]:
    """Return the lines of a table of nodes. What others use, and causes of conditions, have columns only if
    there are any."""
    shared = any(node.others for node in nodes)
    unfit = any(node.cause for node in nodes)
    columns = (
        Column("NODE"),
        Column("CONDITION"),
        Column("CPUS", right=True),
        Column("MEMORY", right=True),
        Column("ACCELERATORS"),
        *([Column("OTHERS")] if shared else []),
        Column("REPLICAS", right=True),
        *([Column("WHY")] if unfit else []),
    )
    rows = [
        (
            node.name,
            node.condition.value,
            f"{node.used_vcpus:g}/{node.vcpus:g}",
            f"{node.used_memory_bytes / 2**30:.1f}/{gibibytes(node.memory_bytes)}",
            ", ".join(f"{used}/{count} {kind}" for kind, count, used in node.accelerators) or "–",
            *([node.others or "–"] if shared else []),
            str(len(node.replicas)),
            *([node.cause or "–"] if unfit else []),
        )
        for node in nodes
    ]
    header, *cells = table(columns, rows)
    lines = [faint(joined(header))]
    for node, row in zip(nodes, cells, strict=True):
        row[1] = click.style(row[1], fg=condition_colour(node.condition))
        lines.append(joined(row))
    return lines


def holder_table(nodes: list[NodeView]) -> list[str]:
    """Return the lines of a table of the replicas that have accelerators; [] if there are none."""
    columns = (
        Column("NODE"),
        Column("ACCELERATORS"),
        Column("REPLICA"),
        Column("OF"),
        Column("GPUS"),
    )
    rows = [
        (
            node.name,
            f"{holder.accelerators} {holder.accelerator}",
            holder.replica,
            holder.job,
            ", ".join(holder.gpus) or "–",
        )
        for node in nodes
        for holder in node.holders
    ]
    if not rows:
        return []
    return titled(columns, rows)


def _others(node: capacity.Node) -> str:
    """Return what others use of a node, as text: `2 CPUs, 4.0 GiB, 1 NVIDIA_L4`."""
    vcpus = node.others_vcpus or 0
    parts = [f"{vcpus:g} CPU{'s' * (vcpus != 1)}"] if vcpus else []
    if size := node.others_memory_bytes or 0:
        parts.append(gibibytes(size))
    parts += [
        f"{kind.used_by_others} {kind.type or 'GPU'}"
        for kind in node.accelerators or ()
        if kind.used_by_others
    ]
    return ", ".join(parts)


def list_nodes(client: Client) -> list[NodeView]:
    """Return the nodes of the service. Raises Refused, Unreachable."""
    return [NodeView.parse(node) for node in client.get(_NODES)["nodes"]]


def _path(node: str, verb: str) -> str:
    return f"{_NODES}/{quote(node, safe='')}{verb}"


def _running(node: NodeView) -> str:
    count = len(node.replicas)
    if not count:
        return "nothing runs there"
    return (
        f"{count} replica{'s' * (count != 1)} there {'are' if count != 1 else 'is'} asked to leave"
    )
