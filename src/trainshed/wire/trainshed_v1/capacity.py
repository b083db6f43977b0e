"""Why a job waits; nodes and quotas; whether a job would be admitted."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from trainshed.wire.trainshed_v1.record import Record


class Waiting(Record, frozen=True):
    """Why a job has no capacity."""

    #: A word of `WaitReason`.
    reason: str = ""
    message: str = ""
    #: What would let the job start; "" = nothing is known.
    hint: str = ""
    #: Names of the jobs that hold what is missing.
    blockers: tuple[str, ...] = ()
    #: When it is looked at again at the latest; "" = when something changes.
    retry_time: str = ""
    #: Place in the queue, or in that of the cluster which it waits for: 1 = next, 0 = none.
    position: int = 0
    #: When that cluster expects to start it; "" = it does not say, or none is waited for.
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
    #: In a list of nodes, of a replica that has accelerators: their type, how many, and the uuids that are
    #: known.
    accelerator: str | UnsetType = UNSET
    accelerators: int | UnsetType = UNSET
    gpus: tuple[str, ...] | UnsetType = UNSET


class Node(Record, frozen=True):
    """A node and what of it is used. One that is not there any more has its name alone."""

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
    #: What runs there, also what was asked to leave and has not left yet.
    replicas: tuple[NodeReplica, ...] | UnsetType = UNSET


class NodeList(Record, frozen=True):
    """The nodes."""

    nodes: tuple[Node, ...] = ()


class DrainRequest(Record, frozen=True):
    """Why a node is drained."""

    reason: str = ""


class Quota(Record, frozen=True):
    """What a project may use of a metric at a time."""

    metric: str = ""
    #: A number, or "unlimited".
    limit: float | str = 0
    #: By jobs that have capacity.
    used: float = 0
    #: Asked for by jobs that wait.
    waiting: float = 0
    #: "set" by an operator, "public" (the public default) or "none".
    source: str = ""


class PlacedQuota(Quota, frozen=True):
    """A quota with its project and region."""

    project: str = ""
    region: str = ""


class QuotaList(Record, frozen=True):
    """The quotas of a project in a region, by metric."""

    project: str = ""
    region: str = ""
    quotas: tuple[Quota, ...] = ()


class QuotaKey(Record, frozen=True):
    """Which quota is meant."""

    #: "" = the service's own.
    project: str = ""
    region: str = ""
    metric: str = ""


class QuotaLimit(QuotaKey, frozen=True):
    """A quota to be set."""

    #: A number of at least 0, or "unlimited".
    limit: float | str = 0


class ExplainRequest(Record, frozen=True):
    """A job to be explained."""

    #: "vertex" or "ml".
    api: str = ""
    #: "" = the service's own.
    project: str = ""
    location: str = ""
    #: What the API's own create takes: a custom or tuning job of Vertex, a job of `ml`.
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
    """What each replica of a worker pool asks for."""

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
    #: Of each replica, if it would be admitted.
    places: tuple[Placement, ...] = ()
    #: Why not; null if it would.
    waiting: Waiting | None = None
    #: How many jobs would stand before it, plus one; 0 if it would be admitted.
    position: int = 0
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    machines: tuple[PoolMachine, ...] = ()
