"""Tracks the nodes of a cluster for the scheduler: what the cluster says of them, and which are quarantined
because they were found unfit."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from trainshed.core.capacity import WaitReason
from trainshed.engines.port import (
    CapacityChanged,
    EngineUnavailable,
    LaunchRejected,
    Node,
    NodeChanged,
    NodeState,
    SlotRequest,
)
from trainshed.eventloop.background import Crew
from trainshed.replica.system import durable
from trainshed_cluster.remote.attempts import Attempts
from trainshed_cluster.remote.cluster import Cluster, ClusterReport, NodeReport
from trainshed_cluster.remote.gang import Gang, hold_name
from trainshed_cluster.remote.options import RemoteOptions

log = logging.getLogger(__name__)

QUARANTINE = "quarantine.json"
"""File in the engine's directory: nodes that were found unfit."""
_NO_AGENT = "no agent"
"""Whoever says that a node can have none, in the place of the agent."""
_LONGEST_WAIT = 60.0
"""Seconds after which the clock is looked at again: it may have been set."""


class QuarantineEntry(msgspec.Struct, frozen=True):
    """Why nothing is started on a node, and until when."""

    cause: str
    #: Seconds since the epoch.
    until: float

    def __str__(self) -> str:
        end = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.until))
        return f"quarantined until {end} UTC: {self.cause}"


class Quarantine:
    """Nodes on which nothing is started for a while, kept in a file so that they survive a restart of the
    service. `seconds`: for how long, if `add` does not say. `load` and `save` block; the owner saves after
    each change."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._nodes: dict[str, QuarantineEntry] = {}

    def load(self) -> None:
        """Read the file. Raises OSError, ValueError (it is damaged)."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        try:
            self._nodes = msgspec.json.decode(data, type=dict[str, QuarantineEntry])
        except msgspec.MsgspecError as error:
            raise ValueError(f"{self._path} cannot be read ({error}); remove it") from error

    def save(self) -> None:
        """Write the file. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(str(self._path), msgspec.json.encode(self._nodes).decode())

    def add(self, node: str, cause: str, now: float, *, seconds: float | None = None) -> None:
        """Quarantine a node. `seconds`: None = the usual time. `now`: seconds since the epoch."""
        until = now + (self._seconds if seconds is None else seconds)
        self._nodes = self._nodes | {node: QuarantineEntry(cause, until)}

    def remove(self, node: str) -> bool:
        """Release a node; return whether it was quarantined."""
        was_there = node in self._nodes
        self._nodes = {name: stay for name, stay in self._nodes.items() if name != node}
        return was_there

    def end(self, now: float) -> tuple[str, ...]:
        """Release the nodes whose time is over; return their names."""
        over = tuple(name for name, stay in self._nodes.items() if stay.until <= now)
        for name in over:
            self.remove(name)
        return over

    def soonest(self) -> float | None:
        """Return when the next node is released, in seconds since the epoch; None = none is quarantined."""
        return min((stay.until for stay in self._nodes.values()), default=None)

    def cause(self, node: str) -> str:
        """Return why a node is quarantined, and until when; "" = it is not."""
        return str(self._nodes.get(node, ""))


class ClusterNodes:
    """The nodes of a cluster, with their resources and states."""

    def __init__(self, attempts: Attempts, cluster: Cluster, options: RemoteOptions) -> None:
        #: The nodes as of the last report.
        self.capacity: tuple[Node, ...] = ()
        self._attempts = attempts
        self._cluster = cluster
        self._options = options
        #: States by name, as the scheduler was told.
        self._states: dict[str, NodeState] = {}
        #: What is wrong with nodes that nevertheless accept replicas, by node and by the agent that said so.
        self._trouble: dict[str, dict[str, str]] = {}
        self._quarantine = Quarantine(options.directory / QUARANTINE, options.quarantine)
        #: Held while the quarantine is changed and saved.
        self._quarantining = asyncio.Lock()
        #: Set when a node is quarantined, because the next release may then be sooner.
        self._quarantined = asyncio.Event()
        self._tasks = Crew()

    async def load(self) -> None:
        """Read which nodes were quarantined before this start. Raises EngineUnavailable."""
        try:
            await asyncio.to_thread(self._quarantine.load)
        except (OSError, ValueError) as error:
            raise EngineUnavailable(f"it is not known which nodes are unfit: {error}") from error

    def begin(self) -> None:
        """Called once the cluster has given its first report."""
        self._take(self._cluster.report(), is_news=False)
        self._tasks.keep(self._follow, "following the cluster's reports")
        self._tasks.keep(self._end_quarantines, "ending quarantines")

    async def close(self) -> None:
        await self._tasks.close()

    def by_name(self) -> dict[str, Node]:
        """Return the nodes by name."""
        return {node.name: node for node in self.capacity}

    def require(self, requests: Iterable[SlotRequest]) -> None:
        """Raises EngineUnavailable if a requested node, or the whole cluster, does not answer, and
        LaunchRejected if the cluster does not list it."""
        for request in requests:
            if silent := next((node for node in self.capacity if node.unreached), None):
                raise EngineUnavailable(
                    f"cluster {silent.name} does not answer: {silent.unreached}"
                )
            if request.node not in self._states:
                raise LaunchRejected(
                    f"there is no node {request.node!r}; this cluster's are "
                    f"{', '.join(sorted(self._states)[:10]) or 'not known'}"
                )
            if self._states[request.node] in (NodeState.GONE, NodeState.UNHEARD):
                raise EngineUnavailable(
                    f"node {request.node} does not answer; name another one, or wait until it is back"
                )

    def not_up(self) -> list[str]:
        """Return the names of the nodes that accept no replicas now."""
        return [name for name, state in self._states.items() if state is not NodeState.UP]

    async def readmit(self, node: str) -> None:
        """Release a node that was found unfit. Raises EngineUnavailable."""
        self.tell_trouble(node, _NO_AGENT, "")
        async with self._quarantining:
            if self._quarantine.remove(node):
                await self._save_quarantine()

    async def quarantine(self, node: str, cause: str, seconds: float | None = None) -> None:
        """Quarantine a node for that many seconds, None = as the settings say; replicas leave it. Raises
        EngineUnavailable if the quarantine, which then still holds, was not written down."""
        log.warning("node %s: quarantined: %s", node, cause)
        async with self._quarantining:
            self._quarantine.add(node, cause, self._options.now(), seconds=seconds)
            self._quarantined.set()
            await self._save_quarantine()

    async def tell_unfit(self, node: str, why: str) -> None:
        """Note why no agent can be on a node; "" = one is there, and all is well. With preflights an unfit
        node is quarantined."""
        self.tell_trouble(node, _NO_AGENT, why)
        if why and self._options.preflight:
            # The quarantine holds even if it cannot be written down.
            with contextlib.suppress(EngineUnavailable):
                await self.quarantine(node, why)

    def tell_trouble(self, node: str, agent: str, what: str) -> None:
        """Note what an agent says is wrong with its node, which nevertheless accepts replicas; "" = nothing
        any more."""
        before = self._trouble_of(node)
        others = {name: text for name, text in self._trouble.get(node, {}).items() if name != agent}
        self._trouble[node] = others | ({agent: what} if what else {})
        after = self._trouble_of(node)
        if after != before and self._states.get(node) is NodeState.UP:
            self._attempts.emit(NodeChanged(node, NodeState.UP, after))

    def _trouble_of(self, node: str) -> str:
        return "; ".join(dict.fromkeys(self._trouble.get(node, {}).values()))

    async def _follow(self) -> None:
        async for report in self._cluster.watch():
            self._take(report, is_news=True)

    def _take(self, report: ClusterReport, *, is_news: bool) -> None:
        capacity = tuple(node_report.node for node_report in report.nodes)
        if capacity != self.capacity:
            self.capacity = capacity
            if is_news:
                self._attempts.emit(CapacityChanged(capacity))
        states = {node_report.node.name: self._judged(node_report) for node_report in report.nodes}
        for name, node_report in states.items():
            if self._states.get(name, NodeState.UP) is not node_report.state:
                self._attempts.emit(NodeChanged(name, node_report.state, node_report.cause))
        for name in self._states.keys() - states.keys():
            self._attempts.emit(
                NodeChanged(name, NodeState.GONE, "the cluster does not list it any more")
            )
        self._states = {name: node_report.state for name, node_report in states.items()}
        for gang in self._attempts.gangs.values():
            self._tell_delay(gang, report)

    def _tell_delay(self, gang: Gang, report: ClusterReport) -> None:
        """Report why the cluster makes a gang wait, if it does."""
        names = (hold_name(self._options.identity, gang.record, part) for part in gang.record.parts)
        delay = next((report.delays[name] for name in names if name in report.delays), None)
        if delay is not None or (gang.delay and gang.delay.cause is WaitReason.CLUSTER):
            self._attempts.report_delay(gang, delay)

    def _judged(self, report: NodeReport) -> NodeReport:
        """Return the cluster's report of a node, changed to QUARANTINED if it is UP but quarantined here."""
        if report.state is NodeState.GONE and report.is_awaited:
            # Agents there may be well: each is only lost when its own lease ends.
            return replace(report, state=NodeState.UNHEARD)
        cause = self._quarantine.cause(report.node.name)
        if report.state is NodeState.UP and cause:
            return replace(
                report, state=NodeState.QUARANTINED, cause=f"{report.node.name} is {cause}"
            )
        if report.state is NodeState.UP:
            return replace(report, cause=self._trouble_of(report.node.name))
        return report

    async def _end_quarantines(self) -> None:
        while True:
            self._quarantined.clear()
            soonest = self._quarantine.soonest()
            left = soonest - self._options.now() if soonest else math.inf
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(max(left, 0), _LONGEST_WAIT)):
                    await self._quarantined.wait()
            async with self._quarantining:
                if ended := self._quarantine.end(self._options.now()):
                    log.info("quarantine has ended: %s", ", ".join(ended))
                    # If this is not written down, a restarted service sees by the clock that they have ended.
                    with contextlib.suppress(EngineUnavailable):
                        await self._save_quarantine()

    async def _save_quarantine(self) -> None:
        """Report the nodes' changed states, and write the quarantine down. Raises EngineUnavailable."""
        self._take(self._cluster.report(), is_news=True)
        try:
            await asyncio.to_thread(self._quarantine.save)
        except OSError as error:
            raise EngineUnavailable(
                f"it cannot be written down which nodes are unfit ({error}); make room and try again"
            ) from error
