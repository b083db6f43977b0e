"""Tracks the state of a cluster's nodes for the scheduler. It combines the cluster's reports with this
service's quarantine of nodes."""

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
from trainshed_cluster.remote.gang import allocation_name
from trainshed_cluster.remote.options import RemoteOptions

log = logging.getLogger(__name__)

NO_AGENT = "no agent"
"""Used instead of an agent's name for a problem that prevents all agents from running on a node."""


class ClusterNodes:
    """The nodes of a cluster, with their resources and states."""

    def __init__(self, attempts: Attempts, cluster: Cluster, options: RemoteOptions) -> None:
        #: The nodes in the last report of the cluster.
        self.capacity: tuple[Node, ...] = ()
        self._attempts = attempts
        self._cluster = cluster
        self._options = options
        #: The states of nodes that were reported last, by node name.
        self._states: dict[str, NodeState] = {}
        #: Problems of nodes that nevertheless accept replicas, by node and agent.
        self._trouble: dict[str, dict[str, str]] = {}
        #: By quarantined node: the cause, and the timer that ends the quarantine. The causes are not stored,
        #: because a restarted service detects them again.
        self._quarantined: dict[str, tuple[str, asyncio.TimerHandle]] = {}
        self._tasks = Crew()

    def start(self) -> None:
        """Start to watch the cluster's reports. Call this after the cluster's first report."""
        self._handle_report(self._cluster.report(), is_news=False)
        self._tasks.keep(self._follow, "watching the cluster's reports")

    async def close(self) -> None:
        for _, ending in self._quarantined.values():
            ending.cancel()
        await self._tasks.close()

    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.capacity}

    def require(self, requests: Iterable[SlotRequest]) -> None:
        """Check the requested nodes. Raises EngineUnavailable if a node or the whole cluster does not
        respond, and LaunchRejected if the cluster does not list a node."""
        for request in requests:
            if silent := next((node for node in self.capacity if node.unreached), None):
                raise EngineUnavailable(f"cluster {silent.name} does not respond: {silent.unreached}")
            if request.node not in self._states:
                raise LaunchRejected(
                    f"node {request.node!r} does not exist; the nodes of this cluster are "
                    f"{', '.join(sorted(self._states)[:10]) or 'unknown'}"
                )
            if self._states[request.node] in (NodeState.GONE, NodeState.UNHEARD):
                raise EngineUnavailable(
                    f"node {request.node} does not respond; use another node, or wait until it responds"
                )

    def not_up(self) -> list[str]:
        """Return the names of the nodes that currently accept no replicas."""
        return [name for name, state in self._states.items() if state is not NodeState.UP]

    def readmit(self, node: str) -> None:
        self.report_trouble(node, NO_AGENT, None)
        if quarantined := self._quarantined.pop(node, None):
            quarantined[1].cancel()
            self._handle_report(self._cluster.report(), is_news=True)

    def quarantine(self, node: str, cause: str, seconds: float | None = None) -> None:
        """Quarantine a node: nothing starts there for that many seconds, and its replicas move to other
        nodes. `seconds`: None = the option `quarantine`."""
        log.warning("node %s: quarantined: %s", node, cause)
        if earlier := self._quarantined.get(node):
            earlier[1].cancel()
        seconds = self._options.quarantine if seconds is None else seconds
        end = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self._options.now() + seconds))
        ending = asyncio.get_running_loop().call_later(seconds, self.readmit, node)
        self._quarantined[node] = f"{node} is quarantined until {end} UTC: {cause}", ending
        self._handle_report(self._cluster.report(), is_news=True)

    def report_trouble(self, node: str, agent: str, what: str | None) -> None:
        """Record a problem that an agent has reported about its node. The node still accepts replicas.
        `what`: the problem; None = the problem is solved."""
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
            self._handle_report(report, is_news=True)

    def _handle_report(self, report: ClusterReport, *, is_news: bool) -> None:
        capacity = tuple(node_report.node for node_report in report.nodes)
        if capacity != self.capacity:
            self.capacity = capacity
            if is_news:
                self._attempts.emit(CapacityChanged(capacity))
        states = {node_report.node.name: self._with_quarantine(node_report) for node_report in report.nodes}
        for name, node_report in states.items():
            if self._states.get(name, NodeState.UP) is not node_report.state:
                self._attempts.emit(NodeChanged(name, node_report.state, node_report.cause))
        for name in self._states.keys() - states.keys():
            self._attempts.emit(NodeChanged(name, NodeState.GONE, "the cluster no longer lists it"))
        self._states = {name: node_report.state for name, node_report in states.items()}
        for gang in self._attempts.gangs.values():
            names = (
                allocation_name(self._options.identity, gang.record, index) for index in gang.record.needs
            )
            delay = next((report.delays[name] for name in names if name in report.delays), None)
            if delay is not None or (gang.delay and gang.delay.cause is WaitReason.CLUSTER):
                self._attempts.report_delay(gang, delay)

    def _with_quarantine(self, report: NodeReport) -> NodeReport:
        """Return the cluster's report of a node. The state is QUARANTINED if this service has quarantined the
        node and the cluster reports it as UP."""
        if report.state is NodeState.GONE and report.is_awaited:
            # The agents on this node may still run. Each agent counts as lost only when it has been silent
            # for a whole lease.
            return replace(report, state=NodeState.UNHEARD)
        quarantined = self._quarantined.get(report.node.name)
        if report.state is NodeState.UP and quarantined:
            return replace(report, state=NodeState.QUARANTINED, cause=quarantined[0])
        if report.state is NodeState.UP:
            return replace(report, cause=self._trouble_of(report.node.name))
        return report
