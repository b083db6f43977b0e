"""What is said about room: nodes, quotas, why a job waits and what would let it start. Values only.

Made by the controller from the scheduler's snapshot, shown by the api room.
"""

import enum
from dataclasses import dataclass

UNLIMITED = -1
"""A quota without a limit."""


class WaitReason(enum.StrEnum):
    """Why a job has no room. POLICY: it is not its turn (priority, fair share, age, a reservation before it)."""

    QUOTA = "quota"
    CAPACITY = "capacity"
    STOCK_OUT = "stock_out"
    REPLICA_LIMIT = "replica_limit"
    POLICY = "policy"
    BACK_OFF = "back_off"
    NO_NODE = "no_node"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a job, or a job that might be submitted, does not start now.

    `message`: one sentence, such as "needs 8 CPUs, 4 of 8 are used by job 17". `hint`: what would let it start, such
    as "would start now with at most 4 replicas", "" if nothing is known. `blockers`: names of jobs that hold
    what is missing, at most five. `retry_at`: ns, when it is looked at again at the latest, 0 = when something changes.
    """

    reason: WaitReason
    message: str
    hint: str = ""
    blockers: tuple[str, ...] = ()
    retry_at: int = 0


@dataclass(frozen=True, slots=True)
class Preflight:
    """Whether a job would be admitted now: `places` (replica name, node) if so, else `waiting`. `position`: how many
    jobs would stand before it, plus one. `notices`: what it would be told, such as "no GPU here"."""

    places: tuple[tuple[str, str], ...] = ()
    waiting: Waiting | None = None
    position: int = 0
    notices: tuple[str, ...] = ()

    @property
    def admitted(self) -> bool:
        return self.waiting is None


class NodeCondition(enum.StrEnum):
    """READY: takes work. DRAINED: by an operator; nothing new, and what runs leaves. GONE: does not answer."""

    READY = "READY"
    DRAINED = "DRAINED"
    GONE = "GONE"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node and what of it is used. Memory in bytes; accelerators as (public type, count)."""

    name: str
    condition: NodeCondition
    cause: str
    vcpus: float
    memory_bytes: int
    accelerators: tuple[tuple[str, int], ...]
    used_vcpus: float
    used_memory_bytes: int
    used_accelerators: tuple[tuple[str, int], ...]
    replicas: tuple[str, ...]
    """Full job name and replica of each, `projects/p/…/customJobs/7 workerpool0-0`."""


@dataclass(frozen=True, slots=True)
class QuotaKey:
    """One quota: of a project, in a region, of a metric (`core.catalog.quotas` names them)."""

    project_id: str
    region: str
    metric: str


@dataclass(frozen=True, slots=True)
class QuotaStatus:
    """`limit` UNLIMITED: none. `source`: "set" (by an operator), "public" (the public default), "none"."""

    key: QuotaKey
    limit: float
    used: float
    waiting: float
    source: str
