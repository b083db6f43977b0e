"""Says in plain words why Slurm makes a job wait and how one ended, with Slurm's own word beside them. Pure.

Slurm has well over a hundred reasons. Those that people meet most have sentences here; any other is shown by
its name alone.
"""

from collections.abc import Iterable

from trainshed.core.capacity import Delay, WaitReason
from trainshed.core.lifecycle.replica_events import Loss
from trainshed_cluster.remote.cluster import HoldEnd
from trainshed_cluster.slurm.records import Job, Pending

_NOT_LOOKED_AT = frozenset({"", "None", "N/A"})
"""What is told of a job that the scheduler has not come to."""
_WORDS = {
    "JobHeldAdmin": "an administrator holds it back; `scontrol release` lets it go",
    "JobHeldUser": "it is held back; `scontrol release` lets it go",
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": (
        "nodes that it needs are down, drained or kept for other partitions"
    ),
    "PartitionDown": "the partition is down",
    "Priority": "other jobs are before it",
    "ReqNodeNotAvail": "a node that it needs is not available",
    "Reservation": "its reservation has not begun, or is full",
    "Resources": "what it needs is in use",
}
_ENDS = {
    "CANCELLED": (Loss.ALLOCATION_REVOKED, "its allocation was cancelled in Slurm"),
    "TIMEOUT": (
        Loss.ALLOCATION_EXPIRED,
        "Slurm's time limit for its allocation is over; a longer one is asked for by "
        '`extra = ["--time=..."]`',
    ),
    "DEADLINE": (Loss.ALLOCATION_EXPIRED, "Slurm's deadline for its allocation is over"),
    "PREEMPTED": (Loss.CLUSTER_PREEMPTED, "Slurm gave its allocation to a job that goes before it"),
    "NODE_FAIL": (Loss.NODE_FAILED, "a node of its allocation failed, as Slurm says"),
    "BOOT_FAIL": (Loss.NODE_FAILED, "a node of its allocation did not boot, as Slurm says"),
}
"""By the state of a job that is over: what ended it, and in what words."""


def in_words(reason: str) -> str:
    """Describe a reason of squeue. Returns "" if Slurm has no reason yet."""
    if reason in _NOT_LOOKED_AT:
        return ""
    if reason in _WORDS:
        return _WORDS[reason]
    # "ReqNodeNotAvail, UnavailableNodes:node[1-3]", "ReqNodeNotAvail, Reserved for maintenance"
    first, _, rest = (part.strip() for part in reason.partition(","))
    if first in _WORDS:
        nodes = rest.removeprefix("UnavailableNodes:")
        return f"{_WORDS[first]}: {nodes}" if nodes else _WORDS[first]
    if reason.startswith("QOS"):
        return "a limit of the QOS"
    if reason.startswith("Assoc"):
        return "a limit of the account"
    return "for a reason of its own"


def end(job: Job) -> HoldEnd | None:
    """Return how an allocation ended; None = its state does not say who ended it."""
    known = _ENDS.get(job.state)
    return HoldEnd(known[0], f"{known[1]} ({job.state})") if known else None


def delay(job: Job, before: int | None, now: float) -> Delay | None:
    """Return the delay to report of a waiting allocation; None = Slurm has not said why yet. `before`: how
    many jobs wait before it; None = not known. `now`: seconds since the epoch."""
    words = in_words(job.reason)
    if not words:
        return None
    nodes = "its node" if job.node_count == 1 else f"its {job.node_count} nodes"
    return Delay(
        WaitReason.CLUSTER,
        f"Slurm has not given {nodes} yet: {words} ({job.reason})",
        word=job.reason,
        position=0 if before is None else before + 1,
        # An estimate in the past is useless.
        expected=job.starts * 10**9 if job.starts > now else 0,
    )


def count_before(job: Job, pending: Iterable[Pending]) -> int | None:
    """Return how many jobs wait before this one in its partitions: Slurm considers higher priorities first,
    then older jobs. None = it is not among `pending`."""
    own = next((other for other in pending if other.id == job.id), None)
    if own is None:
        return None
    partitions = set(own.partitions)
    return sum(
        (-other.priority, other.id) < (-own.priority, own.id)
        and not partitions.isdisjoint(other.partitions)
        for other in pending
    )
