"""Compiles a report of the cluster's current state from its nodes and Pods, and says in plain words why a Pod
does not run yet and how one ended, with Kubernetes' own word beside them. Pure."""

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
from trainshed_cluster.kubernetes.objects import (
    ClusterNode,
    Pod,
    Terminated,
    parse_quantity,
    whole_quantity,
)
from trainshed_cluster.kubernetes.routes import OUT_OF_SERVICE, Routes
from trainshed_cluster.remote.cluster import ClusterReport, HoldEnd, HoldName, NodeReport


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
    """Compile the report. `looked`: monotonic time in seconds until which changes are known. `ghosts`: the
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
        if hold in wanted and (wait := delay(pod)):
            delays[hold] = wait
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


def _unlisted(name: str) -> NodeReport:
    """Return the report of a node that left the API, on which programs of this service may live."""
    why = "Kubernetes does not list it any more"
    return NodeReport(Node(name, 0, 0), NodeState.GONE, why, is_awaited=True)


def node_state(node: ClusterNode) -> tuple[NodeState, str | None, bool]:
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
    return NodeState.UP, None, False


_PULLS: Final = frozenset({"ErrImagePull", "ImagePullBackOff"})
"""Words of an image that does not come; it may yet."""
TRIED_AGAIN: Final = _PULLS | {"CreateContainerError", "RunContainerError"}
"""Words of what a kubelet tries again for good."""
_LONGEST = 300


class _Words(Struct):
    hopeless: dict[str, str]
    unfit: dict[str, str]
    ends: dict[str, tuple[Cause, str]]
    own_limits: dict[str, Cause]


_WORDS = toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Words)


def delay(pod: Pod) -> Delay | None:
    """Return the delay to report of a Pod that does not run yet; None = nothing keeps it for long."""
    if unscheduled := pod.unscheduled:
        word = unscheduled.reason or "Unschedulable"
        if word == "SchedulingGated":
            return None  # The controller that put the gates there says why.
        message = _shortened(unscheduled.message) or "the scheduler has not said why"
        return Delay(
            WaitReason.CLUSTER,
            f"Kubernetes has not placed Pod {pod.metadata.name}: {message} ({word})",
            word=word,
        )
    waiting = pod.waiting
    if waiting is None or waiting.reason in ("", "ContainerCreating", "PodInitializing"):
        return None
    image = pod.waiting_image
    pulling = f"its image {image} does not come" if image else "its image does not come"
    words = pulling if waiting.reason in _PULLS else _why(waiting.reason)
    message = f": {_shortened(waiting.message)}" if waiting.message else ""
    return Delay(
        WaitReason.CLUSTER,
        f"Pod {pod.metadata.name} does not start on node {pod.spec.node_name}: {words}{message} "
        f"({waiting.reason})",
        word=waiting.reason,
    )


def refusal(pod: Pod) -> str | None:
    """Return why a Pod will never run, however long it waits; None = it may."""
    if (waiting := pod.waiting) and waiting.reason in (
        *_WORDS.hopeless,
        "CreateContainerConfigError",
    ):
        image = pod.waiting_image or ", ".join(
            container.image for container in pod.spec.containers or ()
        )
        message = f" ({_shortened(waiting.message)})" if waiting.message else ""
        what = f"image {image}" if waiting.reason in _WORDS.hopeless else "the Pod"
        return (
            f"{what} cannot be used on this cluster: {_why(waiting.reason)}{message} [{waiting.reason}]; "
            "mend [engines.kubernetes], or what it names in the cluster"
        )
    return None


def end(pod: Pod, *, deleted: bool) -> HoldEnd:
    """Return how a Pod ended of which nothing runs any more. `deleted`: its deletion was requested before."""
    name, status, over = pod.metadata.name, pod.status, pod.terminated
    if status.reason == "Evicted":
        own = (loss for words, loss in _WORDS.own_limits.items() if words in status.message)
        loss = next(own, Cause.POD_EVICTED)
        return HoldEnd(loss, f"Pod {name} was evicted: {_shortened(status.message)} (Evicted)")
    if over is not None and over.reason == "OOMKilled":
        return HoldEnd(
            Cause.OUT_OF_MEMORY,
            f"Pod {name} took more memory than its limit, and was killed for it with all that ran in it "
            "(OOMKilled)",
        )
    if status.reason in _WORDS.ends:
        loss, words = _WORDS.ends[status.reason]
        message = f": {_shortened(status.message)}" if status.message else ""
        return HoldEnd(loss, f"{words}{message} (Pod {name}: {status.reason})")
    if disrupted := _disruption(pod):
        return disrupted
    if evicted := kueue.eviction(pod):
        message = _shortened(evicted.message) or evicted.reason
        return HoldEnd(
            Cause.CLUSTER_PREEMPTED, f"Kueue ended Pod {name}: {message} ({evicted.reason})"
        )
    if deleted:
        return HoldEnd(
            Cause.POD_EVICTED,
            f"Pod {name} was deleted, or evicted from its node, and not by this service",
        )
    return HoldEnd(Cause.AGENT_LOST, f"Pod {name} has ended{_exit(over)}")


def _disruption(pod: Pod) -> HoldEnd | None:
    """Return the end that the condition DisruptionTarget tells, which names who ended a Pod; Kubernetes has
    it since 1.26."""
    condition = next(
        (
            candidate
            for candidate in pod.status.conditions or ()
            if candidate.type == "DisruptionTarget"
        ),
        None,
    )
    if condition is None or condition.status != "True":
        return None
    losses = {
        "PreemptionByScheduler": Cause.CLUSTER_PREEMPTED,
        "DeletionByTaintManager": Cause.NODE_FAILED,
        "DeletionByPodGC": Cause.NODE_FAILED,
    }
    message = _shortened(condition.message) or condition.reason
    return HoldEnd(
        losses.get(condition.reason, Cause.POD_EVICTED), f"{message} ({condition.reason})"
    )


def _exit(over: Terminated | None) -> str:
    if over is None:
        return ""
    lines = over.message.strip().splitlines()
    return f" with exit code {over.exit_code}" + (f": {_shortened(lines[-1])}" if lines else "")


def _why(word: str) -> str:
    return (
        _WORDS.hopeless.get(word) or _WORDS.unfit.get(word) or "for a reason of the cluster's own"
    )


def _shortened(text: str) -> str:
    """Return a text as one line, not too long, without its full stop."""
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
