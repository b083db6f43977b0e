"""Creates the labels by which Kueue admits the Pods of an attempt together, as one workload, and reads that
workload's state. Pure.

In Kueue, the Pods of a workload are a group. Here, the group has the name of the attempt. A Pod that replaces
another Pod belongs to the same group, as Kueue requires.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from trainshed.core.capacity import Delay, WaitReason
from trainshed_cluster.kubernetes.objects import ENDED, Condition, Pod, Workload
from trainshed_cluster.remote.cluster import AllocationName, NodeNeed

API: Final = "/apis/kueue.x-k8s.io"
_MANAGED: Final = "kueue.x-k8s.io/managed"
"""Label of the Pods that Kueue manages."""
_QUEUE, _GROUP = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/pod-group-name"
_TOTAL: Final = "kueue.x-k8s.io/pod-group-total-count"
_ROLE: Final = "kueue.x-k8s.io/role-hash"
_RESERVED, _ADMITTED, _FINISHED = "QuotaReserved", "Admitted", "Finished"
_EVICTED: Final = "TerminationTarget"
"""Condition of a Pod that Kueue is ending."""
_READY: Final = "Ready"


def group(allocation: AllocationName) -> str:
    """Return the name of the group of an attempt's Pods. The group's workload in Kueue has the same name."""
    return f"trainshed-{allocation.service}-{allocation.job_uid}-{allocation.attempt}"


def is_own_workload(workload: Workload, service: str) -> bool:
    return workload.metadata.name.startswith(f"trainshed-{service}-")


def labels(allocation: AllocationName, queue: str) -> dict[str, str]:
    return {_QUEUE: queue, _GROUP: group(allocation)}


def annotations(need: NodeNeed) -> dict[str, str]:
    """Return the annotations of a Pod: the size of its group, and its role. Kueue allows eight different
    roles in a group. All Pods of a worker pool therefore have the same role, although their labels and
    excluded nodes differ."""
    pool, _, _ = need.replica.partition("-")
    return {_TOTAL: str(need.gang_size), _ROLE: pool}


def is_managed(pod: Pod) -> bool:
    """Return whether Kueue manages a Pod. Pods that Kueue does not manage start without its admission."""
    return (pod.metadata.labels or {}).get(_MANAGED) == "true"


def eviction(pod: Pod) -> Condition | None:
    """Return the condition with Kueue's reason for evicting a Pod, or None if Kueue does not evict it."""
    condition = _condition(pod.status.conditions, _EVICTED)
    return condition if condition and condition.status == "True" else None


def replacement_delay(
    allocation: AllocationName, need: NodeNeed, pods: Mapping[AllocationName, Pod]
) -> Delay | None:
    """Return the delay to report if an attempt already has its total number of Pods. A further Pod must then
    wait, because Kueue would evict it. None = the attempt has fewer Pods."""
    others = [
        pod
        for held, pod in pods.items()
        # Kueue counts every Pod that has not ended. This includes Pods of lost nodes, although the programs
        # in them have ended because their agents had no contact with the service for a whole lease (a
        # setting).
        if held != allocation and group(held) == group(allocation) and pod.status.phase not in ENDED
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
    """Return the delay to report for a pending workload. `others`: all workloads of its namespace. Returns
    None if the workload is admitted, or if Kueue has not examined it yet."""
    if _is(workload, _ADMITTED):
        return None
    queue = workload.spec.queue_name
    if _is(workload, _RESERVED):
        checks = [
            f"{check.name}{': ' if check.message else ''}{_line(check.message)}"
            for check in workload.status.admission_checks or ()
            if check.state != _READY
        ]
        what = "; ".join(checks) or "Kueue does not list them"
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
    """Return the number of workloads that are before `workload` in its queue. Higher priorities come first,
    then older workloads."""
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
