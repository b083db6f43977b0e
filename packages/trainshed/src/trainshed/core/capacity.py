"""Values that describe capacity: nodes and which replicas they take, quotas, why a job waits and what would
let it start.

Engines make nodes and delays, the controller makes the rest of the scheduler's snapshot; the package `api`
shows them.
"""

import enum
from collections.abc import Mapping
from fnmatch import fnmatchcase

from msgspec import Struct

from trainshed.core.names import Api, normalize_emails
from trainshed.core.units import Nanos


class MachineWanted(Struct, frozen=True):
    """Properties that determine where a replica may run, in addition to free capacity."""

    #: Public machine type; None = not known: then it runs where machines run that no route matches.
    type: str | None = None
    #: Public type of its devices; None = it has none.
    accelerator: str | None = None


class Route(Struct, frozen=True):
    """Where machines of some types run."""

    #: Patterns of machine types, such as `a2-*`; () = all.
    types: tuple[str, ...] = ()
    #: Public device types. A machine must have one of them. () = any or none.
    accelerators: tuple[str, ...] = ()
    #: The destination as part of a sentence: "partition gpu"; None = not known.
    name: str | None = None

    def is_for(self, machine: MachineWanted) -> bool:
        if self.accelerators and machine.accelerator not in self.accelerators:
            return False
        name = machine.type or ""
        return not self.types or any(fnmatchcase(name, pattern) for pattern in self.types)


class Acceptance(Struct, frozen=True):
    """Which replicas a node takes."""

    #: The routes of its cluster; () = every machine may run everywhere.
    routes: tuple[Route, ...] = ()
    #: The positions of the routes that lead to the node.
    open: frozenset[int] = frozenset()

    def takes(self, machine: MachineWanted) -> bool:
        return not self.routes or self.position(machine) in self.open

    def position(self, machine: MachineWanted) -> int | None:
        """Return the position of the route that a machine takes; None = there is none for it."""
        positions = (at for at, route in enumerate(self.routes) if route.is_for(machine))
        return next(positions, None)

    def destination(self, machine: MachineWanted) -> str | None:
        """Return the destination of a machine, such as "partition gpu"; None = not known."""
        at = self.position(machine)
        return None if at is None else self.routes[at].name


_MINUTE: Nanos = 60 * 10**9


class WaitReason(enum.StrEnum):
    """Why a job does not get capacity, or does not start in what it got."""

    #: A quota of its region is used up.
    QUOTA = "quota"
    #: The nodes that could take it are full.
    CAPACITY = "capacity"
    #: The known nodes could not take it even if they were empty.
    STOCK_OUT = "stock_out"
    #: The replicas that run are as many as may run at once.
    REPLICA_LIMIT = "replica_limit"
    #: It is not its turn: priority, fair share, age, or capacity that is reserved for another job.
    POLICY = "policy"
    #: The pause before its next attempt is not over.
    BACK_OFF = "back_off"
    #: No node that it would fit on takes work now: none is known yet, or they are drained, gone and the like.
    NO_NODE = "no_node"
    #: It has its places, but the cluster has not given it the nodes yet. The causes of a `Delay` are this and
    #: what follows.
    CLUSTER = "cluster"
    #: It has its places, but nodes are still being sent what its programs need.
    CONTENT = "content"
    #: It has its places, but its engine cannot start it now, and tries again.
    ENGINE = "engine"


class Waiting(Struct, frozen=True):
    """Why a job, or a job that might be submitted, does not start now."""

    reason: WaitReason
    #: One sentence, such as "needs 8 CPUs, 4 of 8 are used by job 17".
    message: str
    #: An action that would let the job start, such as raising a quota; None = nothing is known.
    hint: str | None = None
    #: Names of jobs that hold what is missing, at most five.
    blockers: tuple[str, ...] = ()
    #: Its place in a cluster's own queue: 1 = next; None = it is in none, or not known.
    position: int | None = None
    #: When the cluster expects to start it (ns since the epoch); None = unknown.
    expected: Nanos | None = None


class Delay(Struct, frozen=True):
    """Why programs that have their places do not start yet, as an engine reports it."""

    cause: WaitReason
    #: One sentence without its full stop. While it stays the same, the cause does too.
    message: str
    #: The cluster's own word for it, such as "Priority".
    word: str | None = None
    #: Place in the cluster's queue: 1 = next; None = not known.
    position: int | None = None
    #: When the cluster expects to start it (ns since the epoch); None = it does not say.
    expected: Nanos | None = None
    #: When it was recorded (ns since the epoch); None = it was not.
    recorded: Nanos | None = None

    def is_news(self, before: "Delay | None", now: Nanos) -> bool:
        """Return whether this delay is worth recording after `before`, the last recorded delay. A
        delay is news if its reason differs, or if the expected start has moved by more than a
        minute and by more than a quarter of the remaining time. A new place in the queue is not
        news. Frequent changes are reported once a minute."""
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
    """Whether a job would be admitted now."""

    #: (replica name, node) of each replica, if it would be admitted.
    places: tuple[tuple[str, str], ...] = ()
    #: Why it would not be admitted; None = it would.
    waiting: Waiting | None = None
    #: Its place in the queue: one more than the jobs before it.
    position: int = 0

    @property
    def admitted(self) -> bool:
        return self.waiting is None


class NodeCondition(enum.StrEnum):
    """Whether a node takes work, and if not, why."""

    #: It takes work.
    READY = "READY"
    #: An operator has drained it: nothing new starts there, and what runs there leaves.
    DRAINED = "DRAINED"
    #: It was found unfit: it is drained for a while.
    QUARANTINED = "QUARANTINED"
    #: It does not answer.
    GONE = "GONE"


class OthersUse(Struct, frozen=True):
    """How much of a node is used by others than this service."""

    vcpus: float = 0
    memory_bytes: int = 0
    #: (public type, count)
    accelerators: tuple[tuple[str, int], ...] = ()


class Node(Struct, frozen=True):
    """A place where replicas run, as an engine offers it."""

    name: str
    vcpus: float
    memory_bytes: int
    #: (public type, count) of the node's accelerators; the type is "" for a GPU that no public type stands
    #: for.
    accelerators: tuple[tuple[str, int], ...] = ()
    #: Resources that other users of the cluster hold now and may release. They do not affect
    #: whether a gang can ever fit.
    others: OthersUse = OthersUse()
    #: Which replicas may be placed there.
    accepts: Acceptance = Acceptance()
    #: Why the cluster does not answer, on an entry that stands for a whole cluster; None = a real node.
    unreached: str | None = None


def accelerator_counts(counts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return (public type, count) of the accelerators with a count above 0, sorted, as nodes have
    them."""
    return tuple(sorted((name, count) for name, count in counts.items() if count))


class NodeStatus(Node, frozen=True, kw_only=True):
    """A node and how much of it is used."""

    condition: NodeCondition
    #: Why it is in that condition; None = it is not known.
    cause: str | None
    #: Used by replicas, as are the next two: never more than the node has, whatever the replicas asked for.
    used_vcpus: float
    used_memory_bytes: int
    #: (public type, count)
    used_accelerators: tuple[tuple[str, int], ...]
    #: Full job name and replica of each, `projects/p/…/customJobs/7 workerpool0-0`.
    replicas: tuple[str, ...]


class QuotaKey(Struct, frozen=True):
    """The key of one quota: a metric in a region for a project (`core.catalog.quotas` names the metrics)."""

    project_id: str
    region: str
    metric: str
    #: The user whose use in the project is limited; `EACH` = every user without a limit of their
    #: own; "" = all users together.
    person: str = ""

    def __post_init__(self) -> None:
        normalize_emails(self, "person")


EACH = "each"
"""Replaces a user's address: every user without a limit of their own."""


class QuotaStatus(Struct, frozen=True):
    """A quota and how much of it is used."""

    key: QuotaKey
    #: None = it has none.
    limit: float | None
    used: float
    waiting: float


class Load(Struct, frozen=True):
    """How much work the service has."""

    #: Jobs that are not over, by API and state.
    jobs: Mapping[tuple[Api, str], int]
    #: How many of them wait for capacity.
    waiting: int
    #: The quotas of all projects that are set, used or waited for.
    quotas: tuple[QuotaStatus, ...]
    #: Jobs that are not over, by project and state.
    jobs_of_projects: Mapping[tuple[str, str], int] = {}
    #: Hours that projects have used this month, by project and metric of its budget.
    used: Mapping[tuple[str, str], float] = {}
