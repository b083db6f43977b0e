"""Compiles a report of the cluster's current state from its nodes and Pods. Pure."""

import math
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from trainshed.core.capacity import Delay, OthersUse, accelerator_counts
from trainshed.engines.port import Node, NodeState
from trainshed_cluster.kubernetes import manifests, reasons
from trainshed_cluster.kubernetes.objects import (
    ClusterNode,
    Container,
    Pod,
    parse_quantity,
    whole_quantity,
)
from trainshed_cluster.kubernetes.routes import OUT_OF_SERVICE, Routes
from trainshed_cluster.remote.cluster import ClusterReport, HoldName, NodeReport


def compile_report(
    looked: float,
    nodes: Iterable[ClusterNode],
    pods: Iterable[Pod],
    *,
    service: str,
    routes: Routes,
    overcommit: float,
    ghosts: Mapping[HoldName, str],
    wanted: Collection[HoldName],
) -> ClusterReport:
    """Compile the report. `looked`: monotonic time in seconds since which no change was missed. `ghosts`: the
    node of each hold whose Pod vanished from the API without an observed end. `wanted`: holds that are
    requested but not held yet."""
    others: dict[str, list[Pod]] = {}
    agents: dict[HoldName, frozenset[str]] = {name: frozenset({at}) for name, at in ghosts.items()}
    delays: dict[HoldName, Delay] = {}
    used = set(ghosts.values())
    idle: set[HoldName] = set()
    for pod in pods:
        node, hold = pod.spec.node_name, manifests.hold_of(pod, service)
        if hold is None:
            if node and not pod.is_over:
                others.setdefault(node, []).append(pod)
            continue
        if not (pod.is_running or pod.is_leaving):
            idle.add(hold)
        if pod.is_over:
            continue
        if node:
            used.add(node)
        if pod.is_running or (node and pod.is_leaving):
            agents[hold] = frozenset({node})
        if hold in wanted and (delay := reasons.delay(pod)):
            delays[hold] = delay
    listed = {node.key: node for node in nodes}
    reports = [
        _node(listed[name], others.get(name, ()), routes, overcommit)
        if name in listed
        else _unlisted(name)
        for name in sorted(listed.keys() | used)
    ]
    return ClusterReport(
        nodes=tuple(
            report for report in reports if report.node.accepts.open or report.node.name in used
        ),
        agents=MappingProxyType(agents),
        looked=looked,
        delays=MappingProxyType(delays),
        idle=frozenset(idle - agents.keys()),
    )


def _node(
    node: ClusterNode, others: Iterable[Pod], routes: Routes, overcommit: float
) -> NodeReport:
    state, cause, is_awaited = node_state(node)
    allocatable = node.status.allocatable or {}
    devices = routes.on(node)
    cpus = memory = 0.0
    taken: dict[str, int] = {}
    for pod in others:
        wanted = requests(pod)
        cpus += wanted.get("cpu", 0.0)
        memory += wanted.get("memory", 0.0)
        for public, resource in devices:
            taken[public] = taken.get(public, 0) + math.ceil(wanted.get(resource, 0.0))
    has = {
        public: whole_quantity(allocatable[resource])
        for public, resource in devices
        if resource in allocatable
    }
    total_memory = whole_quantity(allocatable.get("memory", 0))
    return NodeReport(
        Node(
            node.key,
            parse_quantity(allocatable.get("cpu", 0)) * overcommit,
            total_memory,
            accelerator_counts(has),
            OthersUse(
                cpus * overcommit,
                min(total_memory, math.ceil(memory)),
                accelerator_counts({kind: min(n, has.get(kind, 0)) for kind, n in taken.items()}),
            ),
            routes.acceptance(node),
        ),
        state,
        cause,
        is_awaited=is_awaited,
    )


def _unlisted(name: str) -> NodeReport:
    """Return the report of a node that left the API, on which programs of this service may live."""
    why = "Kubernetes does not list it any more"
    return NodeReport(Node(name, 0, 0), NodeState.GONE, why, is_awaited=True)


def node_state(node: ClusterNode) -> tuple[NodeState, str, bool]:
    """Return a node's state, why it is not up, and, if it is gone, whether its programs may still live: a
    silent node may only be cut off, and then its agents end by their lease."""
    if any(taint.key == OUT_OF_SERVICE for taint in node.taints):
        return NodeState.GONE, "an operator says that it is off (taint out-of-service)", False
    ready = next(
        (condition for condition in node.status.conditions or () if condition.type == "Ready"), None
    )
    if ready is None or ready.status == "Unknown":
        message = f": {ready.message.rstrip('.')}" if ready and ready.message else ""
        return NodeState.GONE, f"Kubernetes does not hear of it{message}", True
    if ready.status != "True":
        # The kubelet reports, so that programs run on, but nothing new may start.
        return NodeState.DRAINING, f"it is not ready: {ready.message or ready.reason}", False
    if node.spec.unschedulable:
        return NodeState.DRAINING, "it is cordoned", False
    return NodeState.UP, "", False


def requests(pod: Pod) -> dict[str, float]:
    """Return the requests that the scheduler counts for a Pod: the sum over its containers, or the largest
    init container's if that is more."""
    totals: dict[str, float] = {}
    for container in pod.spec.containers or ():
        for key, amount in _requests(container):
            totals[key] = totals.get(key, 0.0) + amount
    for container in pod.spec.init_containers or ():
        for key, amount in _requests(container):
            totals[key] = max(totals.get(key, 0.0), amount)
    for key, value in (pod.spec.overhead or {}).items():
        totals[key] = totals.get(key, 0.0) + parse_quantity(value)
    return totals


def _requests(container: Container) -> Iterable[tuple[str, float]]:
    wanted = (container.resources.requests if container.resources else None) or {}
    return ((key, parse_quantity(value)) for key, value in wanted.items())
