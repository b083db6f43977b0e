"""Tracks the nodes of a cluster for the scheduler: what the cluster says of them, and which are quarantined
because they were found unfit."""

import asyncio
import logging
import time
from collections.abc import Iterable

from msgspec.structs import replace

from trainshed.core.capacity import Node, WaitReason
from trainshed.engines.port import (
    CapacityChanged,
    EngineUnavailable,
    LaunchRejected,
    NodeChanged,
    NodeState,
    SlotRequest,
)
from trainshed.eventloop.background import Crew
from trainshed_cluster.remote.attempts import Attempts
from trainshed_cluster.remote.cluster import Cluster, ClusterReport, NodeReport
from trainshed_cluster.remote.gang import hold_name
from trainshed_cluster.remote.options import RemoteOptions

log = logging.getLogger(__name__)

NO_AGENT = "no agent"
"""Whoever says that a node can have none, in the place of the agent."""


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
        #: Why nothing is started on a node, and until when, with what ends that. A restarted service does not
        #: know it any more, and finds out again.
        self._quarantined: dict[str, tuple[str, asyncio.TimerHandle]] = {}
        self._tasks = Crew()

    def begin(self) -> None:
        """Called once the cluster has given its first report."""
        self._take(self._cluster.report(), is_news=False)
        self._tasks.keep(self._follow, "following the cluster's reports")

    async def close(self) -> None:
        for _, ending in self._quarantined.values():
            ending.cancel()
        await self._tasks.close()

    def by_name(self) -> dict[str, Node]:
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

    def readmit(self, node: str) -> None:
        self.tell_trouble(node, NO_AGENT, None)
        if quarantined := self._quarantined.pop(node, None):
            quarantined[1].cancel()
            self._take(self._cluster.report(), is_news=True)

    def quarantine(self, node: str, cause: str, seconds: float | None = None) -> None:
        """Quarantine a node for that many seconds, None = as the options say; replicas leave it."""
        log.warning("node %s: quarantined: %s", node, cause)
        if earlier := self._quarantined.get(node):
            earlier[1].cancel()
        seconds = self._options.quarantine if seconds is None else seconds
        end = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self._options.now() + seconds))
        ending = asyncio.get_running_loop().call_later(seconds, self.readmit, node)
        self._quarantined[node] = f"{node} is quarantined until {end} UTC: {cause}", ending
        self._take(self._cluster.report(), is_news=True)

    def tell_trouble(self, node: str, agent: str, what: str | None) -> None:
        """Note what an agent says is wrong with its node, which nevertheless accepts replicas; None = nothing
        any more."""
        before = self._trouble_of(node)
        others = {name: text for name, text in self._trouble.get(node, {}).items() if name != agent}
        self._trouble[node] = others if what is None else others | {agent: what}
        after = self._trouble_of(node)
        if after != before and self._states.get(node) is NodeState.UP:
            self._attempts.emit(NodeChanged(node, NodeState.UP, after))

    def _trouble_of(self, node: str) -> str | None:
        return "; ".join(dict.fromkeys(self._trouble.get(node, {}).values())) or None

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
            names = (
                hold_name(self._options.identity, gang.record, part) for part in gang.record.parts
            )
            delay = next((report.delays[name] for name in names if name in report.delays), None)
            if delay is not None or (gang.delay and gang.delay.cause is WaitReason.CLUSTER):
                self._attempts.report_delay(gang, delay)

    def _judged(self, report: NodeReport) -> NodeReport:
        """Return the cluster's report of a node, changed to QUARANTINED if it is UP but quarantined here."""
        if report.state is NodeState.GONE and report.is_awaited:
            # Agents there may be well: each is only lost when its own lease ends.
            return replace(report, state=NodeState.UNHEARD)
        quarantined = self._quarantined.get(report.node.name)
        if report.state is NodeState.UP and quarantined:
            return replace(report, state=NodeState.QUARANTINED, cause=quarantined[0])
        if report.state is NodeState.UP:
            return replace(report, cause=self._trouble_of(report.node.name))
        return report
