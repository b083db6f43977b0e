"""A cluster whose nodes are process groups of this machine. Agents are real processes with real connections.
For the conformance suite without a real cluster.
"""

import asyncio
import contextlib
import functools
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

from tests.e2e.fork_server import ForkServer
from tests.engines import alone
from trainshed.core.capacity import Delay, Node, WaitReason
from trainshed.core.failure.evidence import Cause
from trainshed.core.held import Leftover
from trainshed.engines.port import NodeState
from trainshed_cluster.remote.cluster import (
    AgentEnded,
    Allocation,
    AllocationEnd,
    AllocationName,
    ClusterReport,
    ClusterUnavailable,
    NodeNeed,
    NodeReport,
    Owner,
)

NODES = ("alder", "birch")
_POLL_INTERVAL = 0.2


@functools.cache
def _agents() -> ForkServer:
    return ForkServer(("trainshed_cluster.remote.agent_process",))


class ProcessCluster:
    """`directory`: contains the persistent state, so that another instance can continue."""

    def __init__(self, directory: Path, nodes: Sequence[str] = NODES) -> None:
        self._directory = directory
        self._nodes = nodes
        self._report = ClusterReport((), {}, 0.0)
        self._polling: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._closed = False
        self._delays: dict[AllocationName, Delay] = {}

    async def start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._compile_report()
        self._polling = asyncio.create_task(self._poll())

    async def close(self) -> None:
        self._closed = True
        if self._polling is not None:
            self._polling.cancel()
        self._changed.set()

    def report(self) -> ClusterReport:
        return self._report

    async def watch(self) -> AsyncIterator[ClusterReport]:
        while not self._closed:
            await self._changed.wait()
            self._changed.clear()
            yield self._report

    async def owner(self, project: str) -> Owner:
        return Owner(account=project)

    def detach(self) -> None:
        """Only `withhold` blocks a call."""

    async def acquire(
        self, name: AllocationName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Allocation:
        nodes = tuple(need.node for need in needs)
        if avoid is not None:
            nodes = tuple(node for node in reversed(self._nodes) if node not in avoid)[: len(needs)]
        while withheld := [node for node in nodes if self._has(node, "withheld")]:
            self._delays[name] = Delay(WaitReason.CLUSTER, f"{', '.join(withheld)} withheld")
            await asyncio.sleep(_POLL_INTERVAL)
        self._delays.pop(name, None)
        if gone := [node for node in nodes if self._has(node, "gone")]:
            raise ClusterUnavailable(f"{gone} do not answer")
        path = self._directory / f"{name}.hold"
        nodes = tuple(node for node in nodes if not self._has(f"{name}@{node}", "taken"))
        if not path.exists():
            path.touch()
            self._compile_report()
        return Allocation(name, path.name, nodes)

    async def start_agent(self, allocation: Allocation, node: str, argv: Sequence[str], stdin: bytes) -> None:
        if self._has(node, "stepless") or node not in allocation.nodes:
            raise ClusterUnavailable(f"{node} takes no step")
        if self._has(node, "stillborn"):
            raise AgentEnded(f"it ended on {node}, and said: no such file")
        if self._has(node, "short-lived"):
            argv = ["true"]
        errors = self._directory / f"{allocation.name}-{node}.err"
        with tempfile.TemporaryFile() as document, errors.open("ab") as output:
            document.write(stdin)
            document.seek(0)
            place = self._directory / f"{allocation.name}@{node}"
            place.unlink(missing_ok=True)
            # An agent whose starter was killed may start late. It must not count as the next agent of the
            # node.
            place.symlink_to(own := f"{place}.{time.monotonic_ns()}")
            program = ("-m", alone.__name__, *argv)
            await asyncio.to_thread(
                *(_agents().fork, program, os.environ | {"TRAINSHED_LAB_PID": own}),
                stdin=document.fileno(),
                stdout=output.fileno(),
                stderr=output.fileno(),
            )
        while not place.exists():  # noqa: ASYNC110 -- another process creates it
            await asyncio.sleep(_POLL_INTERVAL)

    async def allocation_end(self, name: AllocationName) -> AllocationEnd | None:
        return None

    async def pending_end(self, name: AllocationName) -> AllocationEnd | None:
        for node in self._report.agents.get(name, ()):
            if self._has(node, "evicting"):
                return AllocationEnd(Cause.POD_EVICTED, f"{node} is being emptied")
        return None

    async def require_reachable(self, name: AllocationName) -> None:
        pass

    async def wait_durable(self, names: Collection[AllocationName]) -> tuple[Leftover, ...]:
        return ()

    async def release(self, name: AllocationName) -> None:
        path = self._directory / f"{name}.hold"
        if path.exists():
            for pid in self._agents_in(path).values():
                end(pid)
            path.unlink()

    # --- faults from the lab ---

    def agents_on(self, node: str) -> list[int]:
        return [agents[node] for agents in self.allocations().values() if node in agents]

    def allocations(self) -> dict[str, dict[str, int]]:
        return {path.stem: self._agents_in(path) for path in self._directory.glob("*.hold")}

    def _agents_in(self, allocation: Path) -> dict[str, int]:
        places = {node: allocation.with_name(f"{allocation.stem}@{node}") for node in self._nodes}
        return {node: int(place.read_text()) for node, place in places.items() if place.exists()}

    def mark(self, node: str, mark: str, is_set: bool) -> None:
        """Files that cause faults.
        `gone`: the node is down; `awaited`: a down node is not given up;
        `withheld`: requests for it wait; `stepless`: it can be allocated, but agents cannot start;
        `taken`: an allocation (`ALLOCATION@NODE`) has lost it; `evicting`: its allocations end soon;
        `stillborn`: agents exit before they receive their document;
        `short-lived`: agents exit after that, before they connect;
        `old`: new allocations may end soon; `suspended`: its processes are stopped.
        """
        path = self._directory / f"{node}.{mark}"
        (path.touch if is_set else path.unlink)()

    # --- internals ---

    def _has(self, node: str, mark: str) -> bool:
        return (self._directory / f"{node}.{mark}").exists()

    def _compile_report(self) -> None:
        queried_at, own = time.monotonic(), self._directory.stat().st_ino
        # Not one of another cluster, whose replicas have the same ports.
        address = f"127.{128 + own % 64}.{own // 64 % 256}.{1 + own // 16384 % 254}"
        nodes = tuple(
            NodeReport(
                Node(name, 4, 8 << 30),
                NodeState.GONE if self._has(name, "gone") else NodeState.UP,
                address=address,
                is_awaited=self._has(name, "awaited"),
            )
            for name in self._nodes
        )
        agents: dict[AllocationName, frozenset[str]] = {}
        for path in self._directory.glob("*.hold"):
            agents[AllocationName.parse(path.stem)] = frozenset(
                node for node, pid in self._agents_in(path).items() if lives(pid)
            )
        delays = dict(self._delays)
        old = frozenset(agents if any(self._has(node, "old") for node in self._nodes) else ())
        suspended = {
            name: f"{node} is suspended"
            for name, places in agents.items()
            for node in places
            if self._has(node, "suspended")
        }
        before = self._report
        self._report = ClusterReport(nodes, agents, queried_at, delays, old=old, suspensions=suspended)
        if (before.nodes, before.agents, before.delays) != (nodes, agents, delays):
            self._changed.set()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(_POLL_INTERVAL)
            self._compile_report()


def lives(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def end(pid: int) -> None:
    """An agent and its descendants, which a cluster ends like a step."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
