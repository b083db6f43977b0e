"""Compiles the results of one query of the cluster. Explains why Slurm delays a job, or how the job ended, in
plain words and with Slurm's own term. Pure.

Slurm has well over a hundred reasons. `snapshot.toml` contains descriptions of the most frequent reasons. For
other reasons, users see only Slurm's name.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct, toml
from msgspec.structs import replace

from trainshed.core.capacity import Acceptance, Delay, Node, OthersUse, WaitReason, accelerator_counts
from trainshed.core.failure.evidence import Cause
from trainshed_cluster.remote.cluster import AllocationEnd, AllocationName, ClusterReport, NodeReport
from trainshed_cluster.slurm.records import Gres, Job, NodeLine, Pending, Step, is_awaited, node_state
from trainshed_cluster.slurm.routes import Routes

MAX_ADOPTION_AGE = 43200
"""Age of an allocation in seconds after which no further attempt may adopt it."""
MAX_ESTIMATE: Final = 30 * 86400
"""Expected starts are only reported if they are at most this many seconds ahead. Later estimates are
meaningless, because Slurm assumes that a job without a time limit runs for a year."""
_UNEXAMINED = frozenset({"", "None", "N/A"})
"""Slurm's reasons for a job that Slurm's scheduler has not examined yet."""


class _Reasons(Struct):
    waits: dict[str, str]
    ends: dict[str, tuple[Cause, str]]


_REASONS = toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Reasons)


def reason_in_words(reason: str) -> str | None:
    """Return a description of a reason that squeue prints; None = Slurm has not set a reason yet."""
    if reason in _UNEXAMINED:
        return None
    if reason in _REASONS.waits:
        return _REASONS.waits[reason]
    # Examples: "ReqNodeNotAvail, UnavailableNodes:node[1-3]", "ReqNodeNotAvail, Reserved for maintenance".
    first, _, rest = (part.strip() for part in reason.partition(","))
    if first in _REASONS.waits:
        nodes = rest.removeprefix("UnavailableNodes:")
        return f"{_REASONS.waits[first]}: {nodes}" if nodes else _REASONS.waits[first]
    if reason.startswith("QOS"):
        return "a limit of the QOS"
    if reason.startswith("Assoc"):
        return "a limit of the account"
    return "for another reason"


def cause_of_end(job: Job) -> AllocationEnd | None:
    """Return why an allocation's job ended; None = the job's state does not show the cause."""
    known = _REASONS.ends.get(job.state)
    return AllocationEnd(known[0], f"{known[1]} ({job.state})") if known else None


def delay_of(job: Job, before: int | None, now: float) -> Delay | None:
    """Return the delay to report for a pending allocation; None = Slurm has not set a reason yet. `before`:
    number of jobs before this one; None = unknown. `now`: seconds since the epoch."""
    words = reason_in_words(job.reason)
    if words is None:
        return None
    nodes = "its node" if job.node_count == 1 else f"its {job.node_count} nodes"
    is_estimate = job.starts is not None and now < job.starts <= now + MAX_ESTIMATE
    return Delay(
        WaitReason.CLUSTER,
        f"Slurm has not granted {nodes} yet: {words} ({job.reason})",
        word=job.reason,
        position=None if before is None else before + 1,
        expected=job.starts * 10**9 if job.starts and is_estimate else None,
    )


def count_before(job: Job, pending: Iterable[Pending]) -> int | None:
    """Return the number of jobs that are before `job` in its partitions. Slurm starts jobs with a higher
    priority first, then older jobs. None = the job is not in `pending`."""
    own = next((other for other in pending if other.id == job.id), None)
    if own is None:
        return None
    partitions = set(own.partitions)
    return sum(
        (-other.priority, other.id) < (-own.priority, own.id) and not partitions.isdisjoint(other.partitions)
        for other in pending
    )


class Snapshot(Struct, frozen=True):
    """The state of the cluster at one moment, for this service."""

    #: This service's jobs that have not ended.
    jobs: Mapping[AllocationName, Job]
    #: Further jobs with the name of an allocation that already has a job. Such jobs exist if the service
    #: repeated a request because it received no response.
    duplicates: tuple[tuple[AllocationName, Job], ...]
    report: ClusterReport

    @property
    def queried_at(self) -> float:
        """Start time of the query in monotonic seconds."""
        return self.report.queried_at


def own_jobs(
    jobs: Iterable[Job], service: str, name_of: Callable[[int], str | None]
) -> tuple[tuple[AllocationName, Job], ...]:
    """Return the jobs of this service that wait or have nodes. `name_of`: returns the user's name in
    allocation names for a user id, or None if that user has no jobs of this service."""
    own: list[tuple[AllocationName, Job]] = []
    for job in jobs:
        # Other users may give their jobs the name of an allocation, so the job's user must also match.
        name, user = _name(job.name, service), name_of(job.user)
        if name and user is not None and (job.has_nodes or job.is_pending):
            own.append((replace(name, user=user), job))
    return tuple(own)


def compile_snapshot(
    queried_at: float,
    *,
    now: float,
    jobs: Sequence[tuple[AllocationName, Job]],
    pending: Sequence[Pending],
    steps: Iterable[Step],
    nodes: Sequence[NodeLine],
    routes: Routes,
    known: Mapping[AllocationName, int],
) -> Snapshot:
    """Compile the result of a query.

    Args:
        now: Seconds since the epoch.
        jobs: This service's jobs.
        pending: All waiting jobs of the cluster; () = they were not queried.
        known: Job ids of known allocations. If several jobs have the name of an allocation, the job with the
            known id is used.
    """
    first: dict[AllocationName, Job] = {}
    duplicates: list[tuple[AllocationName, Job]] = []
    for name, job in sorted(
        jobs, key=lambda item: (not item[1].has_nodes, known.get(item[0]) != item[1].id, item[1].id)
    ):
        if name in first:
            duplicates.append((name, job))
        else:
            first[name] = job
    granted = {name: job for name, job in first.items() if job.has_nodes}
    agents: dict[AllocationName, set[str]] = {name: set() for name in granted}
    by_id = {job.id: name for name, job in granted.items()}
    for step in steps:
        name = by_id.get(step.job)
        if name and step.name == str(name):
            agents[name].update(step.nodes)
    return Snapshot(
        MappingProxyType(first),
        tuple(duplicates),
        ClusterReport(
            nodes=_nodes(nodes, _shares(jobs), routes),
            agents=MappingProxyType({name: frozenset(item) for name, item in agents.items()}),
            queried_at=queried_at,
            delays=MappingProxyType(_delays(first, pending, now)),
            idle=frozenset(first.keys() - granted.keys()),
            suspensions=MappingProxyType(
                {
                    name: f"its allocation is suspended in Slurm ({job.state})"
                    for name, job in granted.items()
                    if job.is_stopped
                }
            ),
            old=frozenset(
                name for name, job in granted.items() if now - (job.starts or 0) > MAX_ADOPTION_AGE
            ),
        ),
    )


def _delays(
    jobs: Mapping[AllocationName, Job], pending: Sequence[Pending], now: float
) -> dict[AllocationName, Delay]:
    delays = {
        name: delay_of(job, count_before(job, pending), now) for name, job in jobs.items() if job.is_pending
    }
    return {name: delay for name, delay in delays.items() if delay is not None}


def _name(text: str, service: str) -> AllocationName | None:
    try:
        name = AllocationName.parse(text)
    except ValueError:
        return None
    return name if name.service == service else None


def _shares(jobs: Iterable[tuple[AllocationName, Job]]) -> dict[str, dict[int, Job]]:
    shares: dict[str, dict[int, Job]] = {}
    for _, job in jobs:
        for node in job.nodes if job.has_nodes else ():
            shares.setdefault(node, {})[job.id] = job
    return shares


def _nodes(
    lines: Sequence[NodeLine], shares: Mapping[str, Mapping[int, Job]], routes: Routes
) -> tuple[NodeReport, ...]:
    """Return the reports of the nodes that this service's jobs may use or already use. Slurm reports a node's
    allocated resources. The resources of other jobs are the remainder after subtracting this service's jobs.
    `shares`: this service's jobs on each node."""
    has_default = any(line.in_default for line in lines)
    nodes = [
        (line, routes.acceptance(line, has_default=has_default))
        for line in sorted(lines, key=lambda line: line.name)
    ]
    return tuple(
        _node(line, tuple(shares.get(line.name, {}).values()), routes, accepts)
        for line, accepts in nodes
        if accepts.open or line.name in shares
    )


def _node(line: NodeLine, mine: Sequence[Job], routes: Routes, accepts: Acceptance) -> NodeReport:
    state, cause = node_state(line, reservation=routes.enters_reservation(accepts))
    own_cpus = sum(job.cpus // max(1, job.node_count) for job in mine)
    own_memory = sum(job.memory_bytes for job in mine)
    total, others = _accelerators(line, mine, routes.public)
    # Slurm's commands ran at different moments, so the difference may be negative.
    use = OthersUse(
        max(0, line.cpus_allocated - own_cpus),
        max(0, min(line.memory_bytes, line.memory_allocated - own_memory)),
        others,
    )
    return NodeReport(
        Node(line.name, line.cpus, line.memory_bytes, total, use, accepts),
        state,
        cause,
        line.address,
        is_awaited=is_awaited(line),
    )


def _accelerators(
    line: NodeLine, mine: Sequence[Job], public: Mapping[tuple[str, str], str]
) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]:
    """Return a node's number of accelerators, and the number that other jobs use, each by public accelerator
    type."""
    names = {"gpu", *(name for name, _ in public)}
    total = _devices(line.gres, names)
    used = _devices(line.gres_used, names)
    own = _devices((gres for job in mine for gres in job.gres), names)
    there: dict[str, int] = {}
    others: dict[str, int] = {}
    for kind, count in total.items():
        name = public.get(kind, "")
        theirs = min(count, max(0, used.get(kind, 0) - own.get(kind, 0)))
        there[name] = there.get(name, 0) + count
        others[name] = others.get(name, 0) + theirs
    return accelerator_counts(there), accelerator_counts(others)


def _devices(all_gres: Iterable[Gres], names: Container[str]) -> dict[tuple[str, str], int]:
    """Return the number of generic resources by (name, type). `names`: names of the resources to count."""
    counts: dict[tuple[str, str], int] = {}
    for gres in all_gres:
        if gres.name in names:
            kind = gres.name, gres.type
            counts[kind] = counts.get(kind, 0) + gres.count
    return counts
