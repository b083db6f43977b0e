"""Compiles a report of the cluster from its nodes and Pods. Explains why a Pod does not run, or how it ended,
in plain words and with Kubernetes' own term. Pure."""

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct, toml

from trainshed.core.capacity import Delay, Node, OthersUse, WaitReason, accelerator_counts
from trainshed.core.failure.evidence import Cause
from trainshed.engines.port import NodeState
from trainshed_cluster.kubernetes import kueue, manifests
from trainshed_cluster.kubernetes.objects import ClusterNode, Pod, Terminated, parse_quantity, whole_quantity
from trainshed_cluster.kubernetes.routes import OUT_OF_SERVICE, Routes
from trainshed_cluster.remote.cluster import AllocationEnd, AllocationName, ClusterReport, NodeReport


def compile_report(
    queried_at: float,
    nodes: Iterable[ClusterNode],
    pods: Iterable[Pod],
    *,
    service: str,
    routes: Routes,
    overcommit: float,
    ghosts: Mapping[AllocationName, str],
    wanted: Collection[AllocationName],
) -> ClusterReport:
    """Compile the report.

    Args:
        queried_at: The report contains all changes up to this time (monotonic seconds).
        ghosts: By allocation, the node of a Pod that no longer exists and whose end was not observed.
        wanted: Requested allocations that are not granted yet. The report contains the reasons why they wait.
    """
    others: dict[str, list[Pod]] = {}
    agents: dict[AllocationName, frozenset[str]] = {name: frozenset({at}) for name, at in ghosts.items()}
    delays: dict[AllocationName, Delay] = {}
    used = set(ghosts.values())
    idle: set[AllocationName] = set()
    for pod in pods:
        node, allocation = pod.spec.node_name, manifests.allocation_of(pod, service)
        if allocation is None:
            if node and not pod.is_over:
                others.setdefault(node, []).append(pod)
            continue
        if not (pod.is_running or pod.is_leaving):
            idle.add(allocation)
        if pod.is_over:
            continue
        if node:
            used.add(node)
        if pod.is_running or (node and pod.is_leaving):
            agents[allocation] = frozenset({node})
        if allocation in wanted and (wait := delay(pod)):
            delays[allocation] = wait
    listed = {node.key: node for node in nodes}
    reports = [
        _node(listed[name], others.get(name, ()), routes, overcommit)
        if name in listed
        else _unlisted_node(name)
        for name in sorted(listed.keys() | used)
    ]
    return ClusterReport(
        nodes=tuple(report for report in reports if report.node.accepts.open or report.node.name in used),
        agents=MappingProxyType(agents),
        queried_at=queried_at,
        delays=MappingProxyType(delays),
        idle=frozenset(idle - agents.keys()),
    )


def _node(node: ClusterNode, others: Iterable[Pod], routes: Routes, overcommit: float) -> NodeReport:
    state, cause, is_awaited = node_state(node)
    allocatable = node.status.allocatable or {}
    devices = routes.devices_on(node)
    cpus = memory = 0.0
    taken: dict[str, int] = {}
    for pod in others:
        wanted = pod.requests
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


def _unlisted_node(name: str) -> NodeReport:
    """Return the report of a node that the API no longer lists, but on which programs of this service may
    still run."""
    why = "Kubernetes no longer lists it"
    return NodeReport(Node(name, 0, 0), NodeState.GONE, why, is_awaited=True)


def node_state(node: ClusterNode) -> tuple[NodeState, str | None, bool]:
    """Return a node's state, the reason why it is not UP, and whether programs may still run there although
    it is GONE. A silent node may only be disconnected. The service then waits until the node's agents have
    been silent for the number of seconds in the setting `lease`."""
    if any(taint.key == OUT_OF_SERVICE for taint in node.taints):
        return NodeState.GONE, "an operator marked it as off (taint out-of-service)", False
    ready = next((condition for condition in node.status.conditions or () if condition.type == "Ready"), None)
    if ready is None or ready.status == "Unknown":
        message = f": {ready.message.rstrip('.')}" if ready and ready.message else ""
        return NodeState.GONE, f"Kubernetes receives no status from it{message}", True
    if ready.status != "True":
        # The kubelet responds, so programs continue, but the node accepts no further programs.
        return NodeState.DRAINING, f"it is not ready: {ready.message or ready.reason}", False
    if node.spec.unschedulable:
        return NodeState.DRAINING, "it is cordoned", False
    return NodeState.UP, None, False


_PULLS: Final = frozenset({"ErrImagePull", "ImagePullBackOff"})
"""Kubernetes' reasons for a container whose image cannot be pulled now."""
RETRIED_REASONS: Final = _PULLS | {"CreateContainerError", "RunContainerError"}
"""Kubernetes' reasons for a container that the kubelet tries to start again without limit."""
_MAX_TEXT = 300


class _Reasons(Struct):
    hopeless: dict[str, str]
    unfit: dict[str, str]
    ends: dict[str, tuple[Cause, str]]
    own_limits: dict[str, Cause]


_REASONS = toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Reasons)


def delay(pod: Pod) -> Delay | None:
    """Return the delay to report for a Pod that does not run yet; None = it is about to start."""
    if unscheduled := pod.scheduling_failure:
        word = unscheduled.reason or "Unschedulable"
        if word == "SchedulingGated":
            return None  # Report no delay here: the controller that set the gates reports it.
        message = _shorten(unscheduled.message) or "the scheduler has not reported a reason"
        return Delay(
            WaitReason.CLUSTER,
            f"Kubernetes has not placed Pod {pod.metadata.name}: {message} ({word})",
            word=word,
        )
    waiting = pod.waiting
    if waiting is None or waiting.reason in ("", "ContainerCreating", "PodInitializing"):
        return None
    image = pod.waiting_image
    pulling = f"its image {image} cannot be pulled" if image else "its image cannot be pulled"
    words = pulling if waiting.reason in _PULLS else _reason_text(waiting.reason)
    message = f": {_shorten(waiting.message)}" if waiting.message else ""
    return Delay(
        WaitReason.CLUSTER,
        f"Pod {pod.metadata.name} does not start on node {pod.spec.node_name}: {words}{message} "
        f"({waiting.reason})",
        word=waiting.reason,
    )


def refusal(pod: Pod) -> str | None:
    """Return the reason why a Pod will never run, or None if it may still run."""
    if (waiting := pod.waiting) and waiting.reason in (*_REASONS.hopeless, "CreateContainerConfigError"):
        image = pod.waiting_image or ", ".join(container.image for container in pod.spec.containers or ())
        message = f" ({_shorten(waiting.message)})" if waiting.message else ""
        what = f"image {image}" if waiting.reason in _REASONS.hopeless else "the Pod"
        return (
            f"{what} cannot be used on this cluster: {_reason_text(waiting.reason)}{message} "
            f"[{waiting.reason}]; fix [engines.kubernetes], or the objects in the cluster that it refers to"
        )
    return None


def end(pod: Pod, *, deleted: bool) -> AllocationEnd:
    """Return how a Pod without running containers ended, and why. `deleted`: a client other than this service
    has requested the Pod's deletion."""
    name, status, over = pod.metadata.name, pod.status, pod.termination
    if status.reason == "Evicted":
        own = (loss for words, loss in _REASONS.own_limits.items() if words in status.message)
        loss = next(own, Cause.POD_EVICTED)
        return AllocationEnd(loss, f"Pod {name} was evicted: {_shorten(status.message)} (Evicted)")
    if over is not None and over.reason == "OOMKilled":
        return AllocationEnd(
            Cause.OUT_OF_MEMORY,
            f"Pod {name} exceeded its memory limit, and was killed with all of its programs (OOMKilled)",
        )
    if status.reason in _REASONS.ends:
        loss, words = _REASONS.ends[status.reason]
        message = f": {_shorten(status.message)}" if status.message else ""
        return AllocationEnd(loss, f"{words}{message} (Pod {name}: {status.reason})")
    if disrupted := _disruption(pod):
        return disrupted
    if evicted := kueue.eviction(pod):
        message = _shorten(evicted.message) or evicted.reason
        return AllocationEnd(Cause.CLUSTER_PREEMPTED, f"Kueue ended Pod {name}: {message} ({evicted.reason})")
    if deleted:
        return AllocationEnd(Cause.POD_EVICTED, f"Pod {name} was deleted or evicted, but not by this service")
    return AllocationEnd(Cause.AGENT_LOST, f"Pod {name} has ended{_exit(over)}")


def _disruption(pod: Pod) -> AllocationEnd | None:
    """Return the end of a Pod according to its condition DisruptionTarget (since Kubernetes 1.26), which
    contains the cause. None = the Pod does not have this condition."""
    condition = next(
        (candidate for candidate in pod.status.conditions or () if candidate.type == "DisruptionTarget"), None
    )
    if condition is None or condition.status != "True":
        return None
    losses = {
        "PreemptionByScheduler": Cause.CLUSTER_PREEMPTED,
        "DeletionByTaintManager": Cause.NODE_FAILED,
        "DeletionByPodGC": Cause.NODE_FAILED,
    }
    message = _shorten(condition.message) or condition.reason
    return AllocationEnd(losses.get(condition.reason, Cause.POD_EVICTED), f"{message} ({condition.reason})")


def _exit(over: Terminated | None) -> str:
    if over is None:
        return ""
    lines = over.message.strip().splitlines()
    return f" with exit code {over.exit_code}" + (f": {_shorten(lines[-1])}" if lines else "")


def _reason_text(word: str) -> str:
    return _REASONS.hopeless.get(word) or _REASONS.unfit.get(word) or "for another reason"


def _shorten(text: str) -> str:
    """Return a text as one line of limited length, without its final full stop."""
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= _MAX_TEXT else f"{line[:_MAX_TEXT]}…"
