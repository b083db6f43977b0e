"""Values that describe capacity: nodes with their limits on replicas, quotas, and the reasons why a job
waits. Engines create nodes and delays. The scheduler and the controller create the other values. The package
`api` shows all of them."""

import enum
from collections.abc import Mapping
from fnmatch import fnmatchcase

from msgspec import Struct

from trainshed.core.names import Api, normalize_emails
from trainshed.core.units import Nanos


class MachineWanted(Struct, frozen=True):
    """Properties that determine where a replica may run, in addition to free capacity."""

    #: The public machine type. Without a type, the replica matches only routes for all machine types.
    type: str | None = None
    #: The public type of the replica's accelerators, or None if it has no accelerators.
    accelerator: str | None = None


class Route(Struct, frozen=True):
    """Maps machine types to the part of a cluster where they run, such as a partition."""

    #: Patterns of machine types, such as `a2-*`. An empty tuple matches all machine types.
    types: tuple[str, ...] = ()
    #: Public accelerator types. A machine must have one of them. With an empty tuple, all machines match.
    accelerators: tuple[str, ...] = ()
    #: The destination as part of a sentence, such as "partition gpu", or None if unknown.
    name: str | None = None

    def is_for(self, machine: MachineWanted) -> bool:
        if self.accelerators and machine.accelerator not in self.accelerators:
            return False
        name = machine.type or ""
        return not self.types or any(fnmatchcase(name, pattern) for pattern in self.types)


class Acceptance(Struct, frozen=True):
    """The kinds of replicas that a node accepts."""

    #: The routes of the node's cluster. Without routes, every machine type may run on every node.
    routes: tuple[Route, ...] = ()
    #: The indexes in `routes` of the routes that lead to the node.
    open: frozenset[int] = frozenset()

    def allows(self, machine: MachineWanted) -> bool:
        return not self.routes or self.position(machine) in self.open

    def position(self, machine: MachineWanted) -> int | None:
        """Return the index in `routes` of the first route that matches the machine, or None if no route
        matches."""
        positions = (at for at, route in enumerate(self.routes) if route.is_for(machine))
        return next(positions, None)

    def destination(self, machine: MachineWanted) -> str | None:
        """Return the part of the cluster where a machine type runs, such as "partition gpu": the name of its
        route. Return None if no route matches the machine, or if the route has no name."""
        at = self.position(machine)
        return None if at is None else self.routes[at].name


_MINUTE: Nanos = 60 * 10**9


class WaitReason(enum.StrEnum):
    """Why a job has no capacity, or has capacity but has not started."""

    #: A quota of the job's region is used up.
    QUOTA = "quota"
    #: All suitable nodes are full.
    CAPACITY = "capacity"
    #: No known node could run the job even if the node were empty.
    STOCK_OUT = "stock_out"
    #: The service already runs its maximum number of replicas.
    REPLICA_LIMIT = "replica_limit"
    #: Other jobs come first because of their priority, fair share, age or reserved capacity.
    POLICY = "policy"
    #: Other jobs must finish first (spec/lifecycle#dependencies).
    JOB = "job"
    #: The job is waiting for the end of the pause before its next attempt.
    BACK_OFF = "back_off"
    #: All suitable nodes are unavailable, for example because they are drained or do not respond.
    NO_NODE = "no_node"
    #: The scheduler has placed the job, but the cluster has not provided the nodes yet. A `Delay` has this
    #: cause or one of the following causes.
    CLUSTER = "cluster"
    #: The job is placed, but the software for its programs is still being copied to the nodes.
    CONTENT = "content"
    #: The job is placed, but its engine cannot start it now and will try again.
    ENGINE = "engine"


class Waiting(Struct, frozen=True):
    """Why a job, or a job that a user may submit, does not start now."""

    reason: WaitReason
    #: One sentence, such as "needs 8 CPUs, 4 of 8 are used by job 17".
    message: str
    #: An action after which the job can start, such as raising a quota. None if no action is known.
    hint: str | None = None
    #: Names of at most five jobs that use the missing capacity, or that must finish first.
    blockers: tuple[str, ...] = ()
    #: The job's position in the cluster's own queue (1 = next), or None if unknown or not in a queue.
    position: int | None = None
    #: The start time that the cluster expects (ns since the epoch), or None if unknown.
    expected: Nanos | None = None


class Delay(Struct, frozen=True):
    """Why programs on assigned nodes do not start yet, as reported by an engine."""

    cause: WaitReason
    #: One sentence without a full stop. The sentence changes only if the cause changes.
    message: str
    #: The cluster's own term for the cause, such as "Priority".
    word: str | None = None
    #: The job's position in the cluster's queue (1 = next), or None if unknown.
    position: int | None = None
    #: The start time that the cluster expects (ns since the epoch), or None if the cluster reports none.
    expected: Nanos | None = None
    #: The time when the delay was recorded (ns since the epoch), or None if it was not recorded.
    recorded: Nanos | None = None

    def is_news(self, before: "Delay | None", now: Nanos) -> bool:
        """Return whether to record this delay after `before`, the last recorded delay.

        Changes of the cause, the message and the expected start are recorded. A new expected start counts
        only if it differs by more than a minute and by more than a quarter of the remaining time. A new
        position in the queue is not recorded. Frequent changes are recorded at most once a minute.
        """
        if before is None or self.cause is not before.cause:
            return True
        if self.expected and not before.expected:
            return True
        if self.cause is WaitReason.CLUSTER and now - (before.recorded or 0) < _MINUTE:
            return False
        if self.message != before.message:
            return True
        if not self.expected or not before.expected:
            return False
        left = max(0, self.expected - now)
        moved = abs(self.expected - before.expected)
        return moved > max(_MINUTE, left // 4)


class Preflight(Struct, frozen=True):
    """The result of a preflight check: whether the scheduler would admit a job now."""

    #: (replica name, node) of each replica if the job would be admitted.
    places: tuple[tuple[str, str], ...] = ()
    #: Why the job would not be admitted, or None if it would be admitted.
    waiting: Waiting | None = None
    #: The job's position in the queue: one more than the number of jobs before it.
    position: int = 0

    @property
    def is_admitted(self) -> bool:
        return self.waiting is None


class NodeCondition(enum.StrEnum):
    """Whether a node accepts replicas, and if not, why."""

    #: The node accepts replicas.
    READY = "READY"
    #: An operator has drained the node. No replica starts there, and running replicas move to other nodes.
    DRAINED = "DRAINED"
    #: The service found the node unfit and has drained it for a limited time.
    QUARANTINED = "QUARANTINED"
    #: The node does not respond.
    GONE = "GONE"


class OthersUse(Struct, frozen=True):
    """Resources of a node that other users of the cluster occupy."""

    vcpus: float = 0
    memory_bytes: int = 0
    #: (public accelerator type, count) of each type.
    accelerators: tuple[tuple[str, int], ...] = ()


class Node(Struct, frozen=True):
    """A node on which an engine can run replicas, with the size of the node."""

    name: str
    vcpus: float
    memory_bytes: int
    #: (public type, count) of the node's accelerators. The type is "" for a GPU without a public type.
    accelerators: tuple[tuple[str, int], ...] = ()
    #: Resources that other users of the cluster occupy now and may release. They do not affect whether a gang
    #: can ever fit on the node.
    others: OthersUse = OthersUse()
    #: The kinds of replicas that the scheduler may place on the node.
    accepts: Acceptance = Acceptance()
    #: Why the cluster does not respond, if the entry represents a whole cluster. None for a real node.
    unreached: str | None = None


def accelerator_counts(counts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return sorted pairs (public type, count) of the accelerators with a count above 0, in the form of
    `Node`."""
    return tuple(sorted((name, count) for name, count in counts.items() if count))


class NodeStatus(Node, frozen=True, kw_only=True):
    """A node with its condition and its used resources."""

    condition: NodeCondition
    #: Why the node has this condition, or None if unknown.
    cause: str | None
    #: vCPUs that replicas use. This value and the next two never exceed the node's size, even if jobs request
    #: more.
    used_vcpus: float
    used_memory_bytes: int
    #: (public type, count) of the accelerators that replicas use.
    used_accelerators: tuple[tuple[str, int], ...]
    #: Full job name and replica name of each replica, such as `projects/p/…/customJobs/7 workerpool0-0`.
    replicas: tuple[str, ...]


class QuotaKey(Struct, frozen=True):
    """The key of one quota: a metric in a region for a project. `core.catalog.quotas` lists the metrics."""

    project_id: str
    region: str
    metric: str
    #: The user whose usage in the project is limited. `EACH` selects every user without a limit of their own.
    #: "" selects all users together.
    person: str = ""

    def __post_init__(self) -> None:
        normalize_emails(self, "person")


EACH = "each"
"""Used instead of a user's address: every user without a limit of their own."""


class QuotaStatus(Struct, frozen=True):
    """A quota with its limit and its usage."""

    key: QuotaKey
    #: The limit, or None if the quota is unlimited.
    limit: float | None
    used: float
    waiting: float


class Load(Struct, frozen=True):
    """The service's current workload, for metrics and the console."""

    #: Number of unfinished jobs by API and state.
    jobs: Mapping[tuple[Api, str], int]
    #: Number of jobs that wait for capacity.
    waiting: int
    #: The quotas of all projects that have a limit, usage, or waiting jobs.
    quotas: tuple[QuotaStatus, ...]
    #: Number of unfinished jobs by project and state.
    jobs_of_projects: Mapping[tuple[str, str], int] = {}
    #: Budget usage of this month, by project and metric.
    used: Mapping[tuple[str, str], float] = {}
