"""What the scheduler looks at and what it decides: values only."""

from dataclasses import dataclass

from trainshed.core.capacity import NodeCondition, QuotaKey
from trainshed.core.names import JobUid, ReplicaId


@dataclass(frozen=True, slots=True)
class Demand:
    """What one replica takes of a node. Memory in bytes; `accelerators` devices of the public type `accelerator`."""

    vcpus: float = 0.0
    memory_bytes: int = 0
    accelerator: str = ""
    accelerators: int = 0


@dataclass(frozen=True, slots=True)
class Gang:
    """A job as the scheduler sees it, the same from its creation to its end, unless more memory is given to it.

    `quota`: what it takes of each metric of its project and region while it has room. `longest`: ns that it runs at
    most from its admission on, as far as its limits say. `spot`: on-demand work may take its room.
    `name`: the full job name, for messages.
    """

    uid: JobUid
    name: str
    project_id: str
    region: str
    priority: int
    created: int
    replicas: tuple[tuple[ReplicaId, Demand], ...]
    quota: tuple[tuple[str, float], ...] = ()
    spot: bool = False
    longest: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a gang stands now. `places`: (replica, node) of what has room; () = the whole gang waits.

    A replica of a gang that has places but is not among them lost its own and waits for another one;
    `homeless` names those, with the node each goes back to only if no other has room ("" = any will do).
    `waiting_since`: when it began to wait; `not_before`: it is not admitted earlier. `until`: when it will be over at
    the latest, 0 = not known. `leaving`: its room is being given back already.
    """

    gang: Gang
    places: tuple[tuple[ReplicaId, str], ...] = ()
    homeless: tuple[tuple[ReplicaId, str], ...] = ()
    waiting_since: int = 0
    not_before: int = 0
    until: int = 0
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node as the engine offers it. `condition`: only READY nodes take work."""

    name: str
    vcpus: float
    memory_bytes: int
    accelerators: tuple[tuple[str, int], ...] = ()
    condition: NodeCondition = NodeCondition.READY


@dataclass(frozen=True, slots=True)
class Policy:
    """How room is given. `strict`: nodes have capacities (SPEC §2, "Capacity modes"); else any node takes any replica,
    and only `max_replicas` bounds how many run at once. `patience`: ns for which a job may be overtaken by others
    that fit where it does not, before what it needs is kept for it. `public_quotas`: the public defaults hold where
    no quota is set."""

    strict: bool = False
    max_replicas: int = 256
    patience: int = 600 * 10**9
    public_quotas: bool = False


Quotas = dict[QuotaKey, float]
"""Limits that an operator has set; `capacity.UNLIMITED` for none."""


@dataclass(frozen=True, slots=True)
class Admit:
    """The whole gang gets its places at once."""

    uid: JobUid
    nodes: tuple[tuple[ReplicaId, str], ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A replica that lost its place gets another one."""

    uid: JobUid
    replica: ReplicaId
    node: str


@dataclass(frozen=True, slots=True)
class Preempt:
    """A spot job has to give its room to `by` (full job name)."""

    uid: JobUid
    by: str


@dataclass(frozen=True, slots=True)
class StockOut:
    """No node that there is could ever take the gang, or the part of it that needs a place."""

    uid: JobUid
    reason: str


Decision = Admit | Place | Preempt | StockOut


@dataclass(frozen=True, slots=True)
class Plan:
    """`look_again`: when the passing of time alone could change the plan (ns), 0 = never."""

    decisions: tuple[Decision, ...] = ()
    look_again: int = 0
