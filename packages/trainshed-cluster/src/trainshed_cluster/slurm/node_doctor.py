"""The checks of `trainshed doctor --on-nodes`: a short command on each node of a Slurm cluster that has room
for it checks what an agent would need there. The code of the command is sent along, so that nodes need
nothing of ours."""

import asyncio
import contextlib
import inspect
import json
import os
import socket
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trainshed
from trainshed.engines.port import NodeState
from trainshed.engines.registry import Finding, bad, good, less
from trainshed_cluster.remote.clocks import told_skew
from trainshed_cluster.remote.cluster import ClusterRefused, ClusterUnavailable, Owner
from trainshed_cluster.remote.node_directory import make_ours
from trainshed_cluster.remote.options import Listening
from trainshed_cluster.slurm import commands
from trainshed_cluster.slurm.client import SlurmClient
from trainshed_cluster.slurm.queries import list_nodes
from trainshed_cluster.slurm.records import node_state
from trainshed_cluster.slurm.routes import Routes
from trainshed_cluster.slurm.settings import SlurmSettings
from trainshed_cluster.slurm.users import UnixUser, Users, node_directory

_ABOUT = "nodes from inside"
_AT_ONCE = 16
"""Nodes that are checked at the same time."""
_TOLD = 5
_CAUSE = "An agent could not be there, or not find what programs run in, or not reach this machine."
_REMEDY = (
    'docs/slurm.md, "Finding out what is wrong", says which setting or right each of them asks for.'
)
_NO_ROOM = "Others have them, or Slurm is slow to give them."
_LATER = "Ask again later, or look at them by hand."


@dataclass(frozen=True, slots=True)
class _Wish:
    """The user as whom nodes are checked, and the partition."""

    user: UnixUser | None
    account: str
    partition: str


def look_round(wanted: Mapping[str, Any]) -> list[str]:
    """Return all that is wrong on this node. Runs there without other modules of ours (`_program`)."""
    wrong: list[str] = []
    directory = Path(wanted["directory"])
    was_there = os.path.lexists(directory)
    try:
        make_ours(directory)
        if not os.access(directory, os.W_OK):
            wrong.append(f"{directory} cannot be written")
    except OSError as error:
        wrong.append(str(error))
    if not was_there:
        with contextlib.suppress(OSError):
            directory.rmdir()
    for path in wanted["seen"]:
        if not Path(path).exists():
            wrong.append(f"{path} is not seen there (shared = true)")
    host, port = wanted["host"], wanted["port"]
    try:
        socket.create_connection((host, port), 5).close()
    except OSError as error:
        wrong.append(f"{host} port {port} is not reached: {error}")
    return wrong


def _program() -> str:
    """Return the code that nodes run, which only needs the standard library."""
    lines = (
        "from __future__ import annotations",
        "import contextlib, json, os, socket, stat, sys, time",
        "from pathlib import Path",
        inspect.getsource(make_ours),
        inspect.getsource(look_round),
        "wrong = look_round(json.loads(sys.argv[1]))",
        "print(json.dumps({'wrong': wrong, 'clock': time.time()}))",
    )
    return "\n".join(lines)


def examine_nodes(settings: SlurmSettings, cache: Path | None) -> Finding:
    """Check one cluster's nodes. Blocks until Slurm has run the command on each node that has room, or failed
    to."""
    with _listening(settings) as port:
        return asyncio.run(_examine(settings, cache, port))


@contextlib.contextmanager
def _listening(settings: SlurmSettings) -> Generator[int]:
    """Yield a port as the service would have it: either the service listens there, or this does meanwhile."""
    host = Listening(settings.address).host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            listener.bind((host, settings.port))
            listener.listen(128)
            yield listener.getsockname()[1]
            return
        yield settings.port


async def _examine(settings: SlurmSettings, cache: Path | None, port: int) -> Finding:
    client, routes = SlurmClient(settings), Routes(settings)
    try:
        lines = await client.ask(list_nodes(routes.partitions))
        wishes = await _wishes(settings)
    except ClusterUnavailable as failure:
        return bad(_ABOUT, "cannot be looked at.", cause=f"{failure}.", remedy=_LATER)
    has_default = any(line.in_default for line in lines)
    nodes = [
        line.name
        for line in sorted(lines, key=lambda line: line.name)
        if routes.acceptance(line, has_default=has_default).open
        and node_state(line)[0] is NodeState.UP
    ]
    room = asyncio.Semaphore(_AT_ONCE)

    async def look(node: str, wish: _Wish) -> list[str] | None:
        wanted = {
            "directory": node_directory(settings, wish.user),
            "seen": [str(path) for path in _shared(settings, cache)],
            "host": Listening(settings.address).dialled,
            "port": port,
        }
        async with room:
            return await _look(client, settings, node, wish, wanted)

    pairs = [(node, wish) for node in nodes for wish in wishes]
    answers = await asyncio.gather(*(look(*pair) for pair in pairs))
    return _told(nodes, [(node, wrong) for (node, _), wrong in zip(pairs, answers, strict=True)])


async def _wishes(settings: SlurmSettings) -> list[_Wish]:
    """Return each user once, with the first partition that the user may use."""
    partition = settings.partition
    if not settings.users:
        return [_Wish(None, settings.any_account, partition)]
    users, wishes = Users(settings), dict[Owner, _Wish]()
    for project in settings.users:
        # Users that do not exist are reported elsewhere.
        with contextlib.suppress(ClusterRefused):
            owner = await users.owner(project)
            user = await users.named(owner.user)
            wishes[owner] = _Wish(user, owner.account or settings.any_account, partition)
    return list(wishes.values())


async def _look(
    client: SlurmClient,
    settings: SlurmSettings,
    node: str,
    wish: _Wish,
    wanted: Mapping[str, Any],
) -> list[str] | None:
    """Return what is wrong on a node; None = it has no room."""
    python = settings.python or (sys.executable if settings.shared else "python3")
    command = commands.look_at_node(
        node,
        [python, "-I", "-S", "-c", _program(), json.dumps(wanted)],
        partition=wish.partition,
        account=wish.account,
        qos=settings.qos,
        extra=settings.extra,
    )
    begun = time.time()
    try:
        answer = await client.answer(command, wish.user)
    except ClusterUnavailable as failure:
        if commands.has_no_room(str(failure)):
            return None
        return [str(failure)]
    try:
        report: dict[str, Any] = json.loads(answer)
        clock = told_clock(float(report["clock"]), begun, time.time())
        return [*(str(fault) for fault in report["wrong"]), *clock]
    except (ValueError, KeyError, TypeError):
        return [f"its answer is not understood: {answer[:200]!r}"]


def told_clock(clock: float, begun: float, answered: float) -> list[str]:
    """Return what is wrong with a node's clock, which showed `clock` at some moment between the other two.
    Pure."""
    wrong = told_skew(clock - min(max(clock, begun), answered))
    return (
        [f"{wrong}: times in logs from there are off by that (chronyc tracking)"] if wrong else []
    )


def _shared(settings: SlurmSettings, cache: Path | None) -> Iterator[Path]:
    if settings.shared:
        yield Path(trainshed.__file__)
        if cache is not None and cache.exists():
            yield cache


def _told(nodes: Sequence[str], answers: Sequence[tuple[str, list[str] | None]]) -> Finding:
    faults = [f"{node}: {'; '.join(wrong)}" for node, wrong in answers if wrong]
    busy = list(dict.fromkeys(node for node, wrong in answers if wrong is None))
    if faults:
        some = dict.fromkeys(faults)
        more = f"; and {len(some) - _TOLD} more" if len(some) > _TOLD else ""
        text = f"{'; '.join(list(some)[:_TOLD])}{more}."
        return bad(_ABOUT, text, cause=_CAUSE, remedy=_REMEDY)
    looked = f"{len(nodes) - len(busy)} of {len(nodes)} that are up were looked at, and agents can be there."
    if busy:
        names = ", ".join(busy[:_TOLD]) + (", …" if len(busy) > _TOLD else "")
        return less(_ABOUT, f"{looked} No room on {names}.", cause=_NO_ROOM, remedy=_LATER)
    return good(_ABOUT, looked)
