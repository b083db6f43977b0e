"""Records of capacity: reasons for waiting, nodes, quotas, usage, and preflights."""

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
    #: A change that would allow the job to start; "" = unknown.
    hint: str = ""
    #: Names of the jobs that use the missing capacity, or that must finish first.
    blockers: tuple[str, ...] = ()
    #: Position of the job, starting at 1, in the queue of the service or the cluster; 0 = not in a queue.
    position: int = 0
    #: Start time that the cluster expects; "" = unknown, or the job does not wait for a cluster.
    expected_time: str = ""


class NodeAccelerators(Record, frozen=True):
    """The accelerators of one type on a node."""

    type: str = ""
    count: int = 0
    used: int = 0
    #: Number of accelerators that programs outside this service use.
    used_by_others: int = 0


class NodeReplica(Record, frozen=True):
    """A replica on a node."""

    job: str = ""
    replica: str = ""
    #: Type, number and known UUIDs of the replica's accelerators. Present only in lists of nodes.
    accelerator: str | UnsetType = UNSET
    accelerators: int | UnsetType = UNSET
    gpus: tuple[str, ...] | UnsetType = UNSET
    #: Last known usage. Present only if requested.
    usage: ReplicaUsage | UnsetType = UNSET


class Node(Record, frozen=True):
    """A node and its usage. If the node no longer exists, only its name is set."""

    name: str = ""
    #: A value of `NodeCondition`.
    condition: str | UnsetType = UNSET
    cause: str | UnsetType = UNSET
    vcpus: float | UnsetType = UNSET
    used_vcpus: float | UnsetType = UNSET
    memory_bytes: int | UnsetType = UNSET
    used_memory_bytes: int | UnsetType = UNSET
    #: Resources of the node that programs outside this service use.
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
    """A project's limit for a metric. It applies at any time, or to one month if the metric's name contains
    `month`."""

    metric: str = ""
    #: The users whose usage is limited: a user's address, "each" for each single user, or "" for all users
    #: together.
    user: str = ""
    #: The limit: a number, or "unlimited".
    limit: float | str = 0
    #: Usage by admitted jobs; for the metric `queued_jobs`, the number of waiting jobs.
    used: float = 0
    #: Usage that waiting jobs require.
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

    #: Project of the quota; "" = the service's default project.
    project: str = ""
    region: str = ""
    metric: str = ""
    #: The users whose usage is limited, in the form of `Quota.user`.
    user: str = ""
    #: The new limit: a number of at least 0, or "unlimited". Required.
    limit: float | str = ""


class UsageRow(Record, frozen=True):
    """Usage by one user, project, node, machine type or label value."""

    #: Address of the user, or name of the project, node or machine type, or value of the label; "" = no
    #: label.
    name: str = ""
    gpu_hours: float = 0
    cpu_hours: float = 0
    #: Memory usage in gigabyte-hours.
    gigabyte_hours: float = 0
    machine_hours: float = 0
    #: Part of `cpu_hours` or `gpu_hours` in which the hardware was busy, from 0 to 1; null = no replica
    #: reported it.
    cpu_share: float | None = None
    gpu_share: float | None = None
    #: Cost according to the setting `prices`.
    cost: float = 0


class UsageReport(Record, frozen=True):
    """The usage between two times."""

    #: Project of the report; "-" = all projects.
    project: str = ""
    by: str = ""
    since: str = ""
    until: str = ""
    rows: tuple[UsageRow, ...] = ()


class ExplainRequest(Record, frozen=True):
    """A job for a preflight."""

    #: "vertex" or "ml".
    api: str = ""
    #: Project of the job; "" = the service's default project.
    project: str = ""
    location: str = ""
    #: Body of the API's create request: a custom job, tuning job or training pipeline of Vertex, or a job of
    #: `ml`.
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
    """Result of a preflight."""

    api: str = ""
    project: str = ""
    location: str = ""
    display_name: str = ""
    admitted: bool = False
    #: The node of each replica, if the job would be admitted.
    places: tuple[Placement, ...] = ()
    #: The reason why the job would wait; null = the job would be admitted.
    waiting: Waiting | None = None
    #: Position in the queue, starting at 1; 0 = the job would be admitted.
    position: int = 0
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    machines: tuple[PoolMachine, ...] = ()
