"""The remote engine in the conformance suite, over nodes of this machine (`process_cluster`)."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.engines.conformance.lab import LabWithNodes
from tests.engines.process_cluster import NODES, ProcessCluster, end
from tests.soaks import KILLS
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.options import Options
from trainshed.engines.port import Engine, ProgramRules
from trainshed.engines.streams import FileStreams
from trainshed_cluster.remote import agent_process
from trainshed_cluster.remote.cluster import AllocationName, NodeNeed
from trainshed_cluster.remote.content.bootstrap import AGENT
from trainshed_cluster.remote.engine import RemoteEngine
from trainshed_cluster.remote.messages import AgentDocument
from trainshed_cluster.remote.options import AgentCommand, Listening, RemoteOptions

LEASE = 4.0


def new_engine(directory: Path, port: int, **more: Any) -> RemoteEngine:
    """`more`: options, the names of the `nodes`. By default, a node that is down is lost."""
    own = sys.prefix, sys.base_prefix
    names = more.pop("nodes", NODES)
    nodes = str(directory / "nodes")
    options = RemoteOptions(
        identity="labs",
        directory=directory / "engine",
        listening=Listening("127.0.0.1", port),
        lease=float(more.pop("lease", LEASE)),
        down_is_lost=bool(more.pop("down_is_lost", True)),
        agent=partial(AgentDocument, directory=nodes, rules=ProgramRules(visible=own)),
        command=lambda _: AgentCommand((sys.executable, "-m", AGENT)),
        **more,
    )
    return RemoteEngine(
        ProcessCluster(directory / "cluster", names),
        FileStreams(directory / "logs"),
        options,
        LocalEngine(directory / "here", Options(read_only=tuple(map(Path, own)))),
    )


class RemoteLab(LabWithNodes):
    """`port`: for the hub. `more`: options."""

    kills = KILLS

    def __init__(self, directory: Path, port: int, **more: Any) -> None:
        self._new_engine = partial(new_engine, **more)
        self._directory = directory
        self._port = port
        self.cluster = ProcessCluster(directory / "cluster")

    def engine(self) -> Engine:
        return self.elsewhere()()

    def elsewhere(self) -> Callable[[], Engine]:
        return partial(self._new_engine, self._directory, self._port)

    async def cut_off(self, engine: Engine, node: str) -> None:
        self._signal(node, signal.SIGSTOP)
        self.cluster.mark(node, "gone", is_set=True)

    async def reconnect(self, engine: Engine, node: str) -> None:
        self._signal(node, signal.SIGCONT)
        self.cluster.mark(node, "gone", is_set=False)

    def freeze(self, node: str, *, frozen: bool) -> None:
        """Silence a node although the cluster reports it up, or undo it."""
        self._signal(node, signal.SIGSTOP if frozen else signal.SIGCONT)

    def miss_pings(self, node: str, *, missed: bool) -> None:
        """Silence a node without giving it up, or undo it."""
        self.cluster.mark(node, "awaited", missed)
        self.cluster.mark(node, "gone", missed)
        self.freeze(node, frozen=missed)

    def end_agents(self, node: str) -> None:
        for pid in self.cluster.agents_on(node):
            end(pid)

    async def allocate_as_earlier_version(self, name: AllocationName) -> None:
        """Start as an earlier version of the service did."""
        await self.cluster.acquire(name, [NodeNeed(NODES[0], 1, 1.0, 1 << 20)])

    def agents_directories(self) -> list[Path]:
        """Return the agents' directories on all nodes."""
        return list((self._directory / "nodes").glob("*"))

    def clear(self) -> None:
        agent_process.remove(self.agents_directories())

    def _signal(self, node: str, number: int) -> None:
        """Send a signal to the agents only, not to their programs."""
        for agent in self._agents(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(agent, number)

    def _agents(self, node: str) -> list[int]:
        """Return the process of each live agent."""
        holders = [_children(pid) for pid in self.cluster.agents_on(node)]
        return [children[0] for children in holders if children]


def _children(pid: int) -> list[int]:
    children: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += map(int, thread.read_text().split())
    return children
