"""Records of capacity: why a job waits; nodes and quotas; whether a job would be admitted."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from trainshed.wire.trainshed_v1.record import Record
from trainshed.wire.trainshed_v1.replicas import ReplicaUsage


class Waiting(Record, frozen=True):
    """Why a job has no capacity."""

    #: A word of `WaitReason`.
    reason: str = ""
    message: str = ""
    #: What would let the job start; "" = not known.
    hint: str = ""
    #: Names of the jobs that hold what is missing.
    blockers: tuple[str, ...] = ()
    #: Place in the queue, or in that of the cluster that it waits for: 1 = next, 0 = none.
    position: int = 0
    #: When that cluster expects to start it; "" = not known, or it waits for no cluster.
    expected_time: str = ""


class NodeAccelerators(Record, frozen=True):
    """Accelerators of one type."""

    type: str = ""
    count: int = 0
    used: int = 0
    #: Used by others than this service.
    used_by_others: int = 0


class NodeReplica(Record, frozen=True):
    """A replica on a node."""

    job: str = ""
    replica: str = ""
    #: In a list of nodes, for a replica with accelerators: their type, their number, and the uuids that are
    #: known.
    accelerator: str | UnsetType = UNSET
    accelerators: int | UnsetType = UNSET
    gpus: tuple[str, ...] | UnsetType = UNSET
    #: What it was last seen to use, if that was asked for and is known.
    usage: ReplicaUsage | UnsetType = UNSET


class Node(Record, frozen=True):
    """A node and what of it is used. A node that no longer exists has only its name."""

    name: str = ""
    #: A word of `NodeCondition`.
    condition: str | UnsetType = UNSET
    cause: str | UnsetType = UNSET
    vcpus: float | UnsetType = UNSET
    used_vcpus: float | UnsetType = UNSET
    memory_bytes: int | UnsetType = UNSET
    used_memory_bytes: int | UnsetType = UNSET
    #: Used by others than this service, who share the node with it.
    others_vcpus: float | UnsetType = UNSET
    others_memory_bytes: int | UnsetType = UNSET
    accelerators: tuple[NodeAccelerators, ...] | UnsetType = UNSET
    #: What runs there, including replicas that were asked to leave and have not left yet.
    replicas: tuple[NodeReplica, ...] | UnsetType = UNSET


class NodeList(Record, frozen=True):
    """The nodes."""

    nodes: tuple[Node, ...] = ()


class DrainRequest(Record, frozen=True):
    """Why a node is drained."""

    reason: str = ""


class Quota(Record, frozen=True):
    """What a project may use of a metric: at a time, or in a month if its name says so."""

    metric: str = ""
    #: Whose use is limited: a person's address, or "each"; "" = that of all together.
    user: str = ""
    #: A number, or "unlimited".
    limit: float | str = 0
    #: Used by jobs that have capacity; of `queued_jobs`, how many wait.
    used: float = 0
    #: Needed by jobs that wait.
    waiting: float = 0


class PlacedQuota(Quota, frozen=True):
    """A quota with its project and region."""

    project: str = ""
    region: str = ""


class QuotaList(Record, frozen=True):
    """The quotas of a project in a region, by metric."""

    project: str = ""
    region: str = ""
    quotas: tuple[Quota, ...] = ()


class QuotaLimit(Record, frozen=True):
    """A limit to be set for a quota."""

    #: "" = the service's default project.
    project: str = ""
    region: str = ""
    metric: str = ""
    #: See `Quota`.
    user: str = ""
    #: A number of at least 0, or "unlimited"; must be given.
    limit: float | str = ""


class UsageRow(Record, frozen=True):
    """What somebody or something has used."""

    #: Of whom or what: an address, a project, a node, a machine type, or the value of a label; "" = it has
    #: none.
    name: str = ""
    gpu_hours: float = 0
    cpu_hours: float = 0
    #: Of memory.
    gigabyte_hours: float = 0
    machine_hours: float = 0
    #: Which part of these hours was at work; None = no replica left a record.
    cpu_share: float | None = None
    gpu_share: float | None = None
    #: By the setting `prices`.
    cost: float = 0


class UsageReport(Record, frozen=True):
    """What was used between two moments."""

    #: "-" = all projects.
    project: str = ""
    by: str = ""
    since: str = ""
    until: str = ""
    rows: tuple[UsageRow, ...] = ()


class ExplainRequest(Record, frozen=True):
    """A job about which it is asked whether it would be admitted."""

    #: "vertex" or "ml".
    api: str = ""
    #: "" = the service's default project.
    project: str = ""
    location: str = ""
    #: The body of the API's own create: a custom or tuning job of Vertex, a job of `ml`.
    job: Mapping[str, Any] = {}


class Placement(Record, frozen=True):
    """Where a replica would run."""

    replica: str = ""
    task: str = ""
    node: str = ""


class MachineAccelerators(Record, frozen=True):
    """Accelerators of one machine."""

    type: str = ""
    count: int = 0


class PoolMachine(Record, frozen=True):
    """The machine of each replica of a worker pool."""

    pool: str = ""
    replicas: int = 0
    machine_type: str = ""
    vcpus: float = 0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    accelerators: MachineAccelerators | None = None
    disk_gb: int = 0


class Explanation(Record, frozen=True):
    """Whether a job would be admitted now."""

    api: str = ""
    project: str = ""
    location: str = ""
    display_name: str = ""
    admitted: bool = False
    #: The place of each replica, if the job would be admitted.
    places: tuple[Placement, ...] = ()
    #: Why it would not be admitted; null if it would.
    waiting: Waiting | None = None
    #: Its place in the queue: 1 = next; 0 if it would be admitted.
    position: int = 0
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    machines: tuple[PoolMachine, ...] = ()
