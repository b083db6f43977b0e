"""Writes the labels by which Kueue admits the Pods of an attempt as one workload, and reads what it says of
that. Pure.

A group is named after its attempt. Replacements of its Pods belong to the same group, as Kueue demands.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from trainshed.core.capacity import Delay, WaitReason
from trainshed_cluster.kubernetes.objects import ENDED, Condition, Pod, Workload
from trainshed_cluster.remote.cluster import HoldName, NodeNeed

API: Final = "/apis/kueue.x-k8s.io"
_MANAGED: Final = "kueue.x-k8s.io/managed"
"""Label that Kueue gives to Pods that it lets wait."""
_QUEUE, _GROUP = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/pod-group-name"
_TOTAL: Final = "kueue.x-k8s.io/pod-group-total-count"
_ROLE: Final = "kueue.x-k8s.io/role-hash"
_RESERVED, _ADMITTED, _FINISHED = "QuotaReserved", "Admitted", "Finished"
_EVICTED: Final = "TerminationTarget"
"""Condition of a Pod that Kueue ends."""
_READY: Final = "Ready"


def group(hold: HoldName) -> str:
    """Return the group name of an attempt's Pods, which is also the name of the workload that Kueue makes of
    them."""
    return f"trainshed-{hold.service}-{hold.job_uid}-{hold.attempt}"


def is_ours(workload: Workload, service: str) -> bool:
    return workload.metadata.name.startswith(f"trainshed-{service}-")


def labels(hold: HoldName, queue: str) -> dict[str, str]:
    return {_QUEUE: queue, _GROUP: group(hold)}


def annotations(need: NodeNeed) -> dict[str, str]:
    """Return the annotations of a Pod. The role tells Kueue which Pods are alike: a group may have eight
    kinds, and the Pods of a worker pool count as one although each has its own labels and may have to avoid
    other nodes."""
    pool, _, _ = need.replica.partition("-")
    return {_TOTAL: str(need.gang_size), _ROLE: pool}


def is_managed(pod: Pod) -> bool:
    """Whether Kueue manages a Pod; any other starts without its admission."""
    return (pod.metadata.labels or {}).get(_MANAGED) == "true"


def eviction(pod: Pod) -> Condition | None:
    """Return the condition that says why Kueue evicted a Pod; None = it did not."""
    condition = _condition(pod.status.conditions, _EVICTED)
    return condition if condition and condition.status == "True" else None


def crowded(hold: HoldName, need: NodeNeed, pods: Mapping[HoldName, Pod]) -> Delay | None:
    """Return the delay to report while an attempt already has as many Pods as it is to have, because Kueue
    evicts the newest of any more. None = it has fewer."""
    others = [
        pod
        for held, pod in pods.items()
        # As Kueue counts them: whether one may still live, its lease has settled.
        if held != hold and group(held) == group(hold) and pod.status.phase not in ENDED
    ]
    if len(others) < need.gang_size:
        return None
    last = next((pod for pod in others if pod.is_leaving), others[0])
    return Delay(
        WaitReason.CLUSTER,
        f"Kueue counts Pod {last.metadata.name} until Kubernetes has seen it end on node "
        f"{last.spec.node_name}",
        word="WaitingForReplacementPods",
    )


def delay(workload: Workload, others: Iterable[Workload]) -> Delay | None:
    """Return the delay to report of a workload that waits; None = it is admitted, or Kueue has not examined
    it yet. `others`: all workloads of its namespace."""
    if _is(workload, _ADMITTED):
        return None
    queue = workload.spec.queue_name
    if _is(workload, _RESERVED):
        checks = [
            f"{check.name}{': ' if check.message else ''}{_line(check.message)}"
            for check in workload.status.admission_checks or ()
            if check.state != _READY
        ]
        what = "; ".join(checks) or "Kueue does not say which"
        return Delay(
            WaitReason.CLUSTER,
            f"Kueue has quota for the job in queue {queue}, and waits for its admission checks ({what})",
            word="AdmissionChecks",
        )
    condition = _condition(workload.status.conditions, _RESERVED)
    if condition is None:
        return None
    return Delay(
        WaitReason.CLUSTER,
        f"Kueue has not admitted the job to queue {queue} yet: {_line(condition.message)} "
        f"({condition.reason})",
        word=condition.reason,
        position=_position(workload, others),
    )


def _position(workload: Workload, others: Iterable[Workload]) -> int:
    """Return how many workloads of its queue wait before it: higher priorities go first, then older ones."""
    own = _rank(workload)
    waiting = (
        other
        for other in others
        if other.spec.queue_name == workload.spec.queue_name
        and not _is(other, _RESERVED)
        and not _is(other, _FINISHED)
    )
    return 1 + sum(_rank(other) < own for other in waiting)


def _rank(workload: Workload) -> tuple[int, float, str]:
    made = workload.metadata.creation_timestamp
    since = made.timestamp() if made else float("inf")
    return -workload.spec.priority, since, workload.metadata.name


def _is(workload: Workload, kind: str) -> bool:
    condition = _condition(workload.status.conditions, kind)
    return condition is not None and condition.status == "True"


def _condition(conditions: Iterable[Condition] | None, kind: str) -> Condition | None:
    return next((condition for condition in conditions or () if condition.type == kind), None)


def _line(text: str) -> str:
    return " ".join(text.split())[:300].rstrip(".")
