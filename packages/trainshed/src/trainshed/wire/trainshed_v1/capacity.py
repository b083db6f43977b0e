"""Records of capacity: reasons for waiting, nodes, quotas, usage, and admission checks."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from trainshed.wire.trainshed_v1.record import Record
from trainshed.wire.trainshed_v1.replicas import ReplicaUsage


class Waiting(Record, frozen=True):
    """The reason why a job waits for capacity."""

    #: A value of `WaitReason`.
    reason: str = ""
    message: str = ""
    #: A change that would let the job start; "" = unknown.
    hint: str = ""
    #: Names of the jobs that use the missing capacity.
    blockers: tuple[str, ...] = ()
    #: Position in the service's queue, or in the queue of the cluster: 1 = next, 0 = none.
    position: int = 0
    #: Start time expected by the cluster; "" = unknown, or the job waits for no cluster.
    expected_time: str = ""


class NodeAccelerators(Record, frozen=True):
    """The accelerators of one type on a node."""

    type: str = ""
    count: int = 0
    used: int = 0
    #: Number used by other programs than this service's.
    used_by_others: int = 0


class NodeReplica(Record, frozen=True):
    """A replica on a node."""

    job: str = ""
    replica: str = ""
    #: Type, number and known UUIDs of the replica's accelerators. Only in a list of nodes.
    accelerator: str | UnsetType = UNSET
    accelerators: int | UnsetType = UNSET
    gpus: tuple[str, ...] | UnsetType = UNSET
    #: Last known usage. Only if the request includes usage.
    usage: ReplicaUsage | UnsetType = UNSET


class Node(Record, frozen=True):
    """A node and its usage. For a node that no longer exists, only the name is set."""

    name: str = ""
    #: A value of `NodeCondition`.
    condition: str | UnsetType = UNSET
    cause: str | UnsetType = UNSET
    vcpus: float | UnsetType = UNSET
    used_vcpus: float | UnsetType = UNSET
    memory_bytes: int | UnsetType = UNSET
    used_memory_bytes: int | UnsetType = UNSET
    #: Used by other programs than this service's on the same node.
    others_vcpus: float | UnsetType = UNSET
    others_memory_bytes: int | UnsetType = UNSET
    accelerators: tuple[NodeAccelerators, ...] | UnsetType = UNSET
    #: Replicas on the node, including those that are moving to another node.
    replicas: tuple[NodeReplica, ...] | UnsetType = UNSET


class NodeList(Record, frozen=True):
    """A list of nodes."""

    nodes: tuple[Node, ...] = ()


class DrainRequest(Record, frozen=True):
    """The reason for draining a node."""

    reason: str = ""


class Quota(Record, frozen=True):
    """A project's limit for a metric: at one time, or in one month if its name contains that."""

    metric: str = ""
    #: The limited users: a user's address, or "each"; "" = all users together.
    user: str = ""
    #: A number, or "unlimited".
    limit: float | str = 0
    #: Used by jobs with capacity; for `queued_jobs`, the number of waiting jobs.
    used: float = 0
    #: Required by waiting jobs.
    waiting: float = 0


class PlacedQuota(Quota, frozen=True):
    """A quota with its project and region."""

    project: str = ""
    region: str = ""


class QuotaList(Record, frozen=True):
    """The quotas of a project in a region, sorted by metric."""

    project: str = ""
    region: str = ""
    quotas: tuple[Quota, ...] = ()


class QuotaLimit(Record, frozen=True):
    """A new limit of a quota."""

    #: "" = the service's default project.
    project: str = ""
    region: str = ""
    metric: str = ""
    #: See `Quota`.
    user: str = ""
    #: A number of at least 0, or "unlimited". Required.
    limit: float | str = ""


class UsageRow(Record, frozen=True):
    """The usage of one user, project, node, machine type or label."""

    #: The user's address, or the name of the project, node or machine type, or the label's value; "" = none.
    name: str = ""
    gpu_hours: float = 0
    cpu_hours: float = 0
    #: Memory usage.
    gigabyte_hours: float = 0
    machine_hours: float = 0
    #: The part of these hours in which the hardware was busy; null = no replica reported it.
    cpu_share: float | None = None
    gpu_share: float | None = None
    #: Cost by the setting `prices`.
    cost: float = 0


class UsageReport(Record, frozen=True):
    """The usage between two times."""

    #: "-" = all projects.
    project: str = ""
    by: str = ""
    since: str = ""
    until: str = ""
    rows: tuple[UsageRow, ...] = ()


class ExplainRequest(Record, frozen=True):
    """A job for an admission check."""

    #: "vertex" or "ml".
    api: str = ""
    #: "" = the service's default project.
    project: str = ""
    location: str = ""
    #: The body of the API's create request: a custom or tuning job of Vertex, or a job of `ml`.
    job: Mapping[str, Any] = {}


class Placement(Record, frozen=True):
    """The node on which a replica would run."""

    replica: str = ""
    task: str = ""
    node: str = ""


class MachineAccelerators(Record, frozen=True):
    """The accelerators of one machine."""

    type: str = ""
    count: int = 0


class PoolMachine(Record, frozen=True):
    """The machine of each replica in a worker pool."""

    pool: str = ""
    replicas: int = 0
    machine_type: str = ""
    vcpus: float = 0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    accelerators: MachineAccelerators | None = None
    disk_gb: int = 0


class Explanation(Record, frozen=True):
    """The result of an admission check."""

    api: str = ""
    project: str = ""
    location: str = ""
    display_name: str = ""
    admitted: bool = False
    #: The node of each replica, if the job would be admitted.
    places: tuple[Placement, ...] = ()
    #: The reason why the job would wait; null = it would be admitted.
    waiting: Waiting | None = None
    #: Position in the queue: 1 = next; 0 = it would be admitted.
    position: int = 0
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    machines: tuple[PoolMachine, ...] = ()
