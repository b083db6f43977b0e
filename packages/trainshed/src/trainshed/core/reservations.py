"""Persistent resources: machines that are reserved for jobs of their project (spec/queue#reservations). Pure.
A resource receives its machines like a job. Its holds wait in the scheduler's queue, count against quotas,
and keep their machines until they are released. A job selects the resource by its name. The job's replicas
then run only on the machines of the resource, with one replica per machine."""

import enum
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.errors import format_list
from trainshed.core.job import Disk, JobError, JobSpec, Machine
from trainshed.core.names import PLACE, JobName, JobUid, ReplicaId, read_name
from trainshed.core.units import Nanos, text_micros

STOCK_OUT: Final = 8
"""The google.rpc.Code RESOURCE_EXHAUSTED."""
RESOURCE_ID: Final = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")


class ReservationState(enum.StrEnum):
    """The public states of a persistent resource."""

    #: The resource is waiting for its machines.
    PROVISIONING = "PROVISIONING"
    RUNNING = "RUNNING"
    #: The resource is being deleted, and its jobs are being cancelled.
    STOPPING = "STOPPING"
    #: The resource reserves nothing, because no nodes can provide its machines.
    ERROR = "ERROR"
    #: The jobs of the resource are being stopped, and will start again.
    REBOOTING = "REBOOTING"
    #: The resource is waiting for additional machines.
    UPDATING = "UPDATING"


class PersistentResourceName(Struct, frozen=True, order=True):
    """A persistent resource's name: `projects/P/locations/L/persistentResources/R`."""

    project_id: str
    location: str
    resource_id: str

    def __str__(self) -> str:
        place = f"projects/{self.project_id}/locations/{self.location}"
        return f"{place}/persistentResources/{self.resource_id}"

    @staticmethod
    def parse(name: str, *, of: str = "name") -> "PersistentResourceName":
        """Parse a persistent resource's name. Raise InvalidRequest on the field `of` for an invalid name."""
        return PersistentResourceName(*read_name(name, f"{PLACE}/persistentResources/RESOURCE", of))


def resource_of(name: JobName, spec: JobSpec) -> PersistentResourceName | None:
    """Return the name of the persistent resource for a job, or None if the job has its own machines."""
    if spec.persistent_resource is None:
        return None
    return PersistentResourceName(name.project_id, name.location, spec.persistent_resource)


class ResourcePool(Struct, frozen=True):
    """A pool of a persistent resource: a number of machines of the same type with equal disks."""

    id: str
    machine: Machine
    disk: Disk
    #: The current number of machines to reserve.
    count: int


class Hold(Struct, frozen=True):
    """Machines of a persistent resource that are placed together, like the replicas of a job."""

    uid: JobUid
    #: The machines of the hold. Each is identified by the position of its pool and a number.
    replicas: tuple[ReplicaId, ...]
    #: (machine, node) of each placed machine. Empty while the hold waits.
    places: tuple[tuple[ReplicaId, str], ...] = ()
    #: Time at which the hold was placed (ns).
    since: Nanos = 0
    #: Time of the hold's request (ns).
    created: Nanos = 0


class PersistentResource(Struct, frozen=True):
    """A persistent resource in its stored form."""

    name: PersistentResourceName
    #: The client's resource in public JSON, with ids of all pools.
    public_json: str
    #: Time of creation in nanoseconds since the epoch. `updated` and `started` have the same unit.
    created: Nanos
    updated: Nanos
    pools: tuple[ResourcePool, ...]
    holds: tuple[Hold, ...]
    display_name: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    #: The e-mail address of the resource's creator.
    person: str = ""
    #: Time at which the resource received its first machines, or 0.
    started: Nanos = 0
    error: JobError | None = None
    is_rebooting: bool = False
    #: The e-mail address of the user who deletes the resource. None if it is not being deleted.
    deleted_by: str | None = None
    #: The name of the operation that finishes when the resource is RUNNING, in ERROR, or deleted.
    operation: str = ""

    @property
    def state(self) -> ReservationState:
        if self.deleted_by is not None:
            return ReservationState.STOPPING
        if self.error is not None:
            return ReservationState.ERROR
        if not self.started:
            return ReservationState.PROVISIONING
        if self.is_rebooting:
            return ReservationState.REBOOTING
        if any(not hold.places for hold in self.holds):
            return ReservationState.UPDATING
        return ReservationState.RUNNING

    @property
    def is_settled(self) -> bool:
        """Return whether the operation of the resource is finished."""
        return self.state in (ReservationState.RUNNING, ReservationState.ERROR)

    def pool(self, replica: ReplicaId) -> ResourcePool:
        return self.pools[replica.pool]

    def slots(self) -> Counter[tuple[str, str]]:
        """Return the number of reserved machines by node and by kind, as returned by `kind_of`."""
        return Counter(
            (kind_of(self.pool(replica).machine), node)
            for hold in self.holds
            for replica, node in hold.places
        )


Used = Mapping[tuple[str, str], int]
"""The numbers of machines that jobs of a resource use, by (kind, node). `kind_of` returns the kind."""

Change = Callable[[PersistentResource, Used], PersistentResource | None]
"""A function that returns the changed resource, or None to delete it."""


def kind_of(machine: Machine) -> str:
    """Return the kind of a machine, such as `n1-standard-4` or `n1-standard-4 with 2 NVIDIA_TESLA_T4`. Each
    replica of a job requires a machine of its own kind."""
    devices = machine.accelerators
    return f"{machine.type} with {devices.count} {devices.type}" if devices else machine.type


def fault_of_job(resource: PersistentResource | None, name: str, spec: JobSpec) -> str | None:
    """Return an error if a job can never run on the resource with this name, otherwise None."""
    if resource is None:
        return f"{name} does not exist. Create it first, or omit the field."
    if resource.state in (ReservationState.STOPPING, ReservationState.ERROR):
        return f"{name} is {resource.state}. Use another persistent resource, or omit the field."
    limits, needed = Counter[str](), Counter[str]()
    for pool in resource.pools:
        limits[kind_of(pool.machine)] += pool.count
    for wanted in spec.pools:
        needed[kind_of(wanted.machine)] += wanted.replica_count
    there = format_list(f"{count} x {kind}" for kind, count in limits.items())
    wrong = [f"{n} x {kind}" for kind, n in needed.items() if n > limits[kind]]
    if not wrong:
        return None
    return (
        f"The job needs {format_list(wrong)}, and {name} has {there}. Give the worker pools machine "
        "types and accelerators of its resource pools, and at most as many replicas."
    )


def first_hold(uid: JobUid, pools: Sequence[ResourcePool], now: Nanos) -> Hold:
    """Return the first hold of a new resource."""
    replicas = (ReplicaId(at, n) for at, pool in enumerate(pools) for n in range(pool.count))
    return Hold(uid, tuple(replicas), created=now)


def place(
    resource: PersistentResource, uid: JobUid, places: tuple[tuple[ReplicaId, str], ...], now: Nanos
) -> PersistentResource:
    """Return the resource after all machines of one of its holds were placed, or after some of these machines
    moved to other nodes."""

    def move(hold: Hold) -> Hold:
        current = dict(hold.places) | dict(places)
        kept = tuple((r, current[r]) for r in hold.replicas if r in current)
        return replace(hold, places=kept, since=hold.since or now)

    holds = tuple(move(hold) if hold.uid == uid else hold for hold in resource.holds)
    return replace(resource, holds=holds, started=resource.started or now)


def refuse(resource: PersistentResource, uid: JobUid, error: JobError) -> PersistentResource:
    """Return the resource without a hold that can never be placed. If the resource has never had machines,
    keep the hold and set `error` instead."""
    hold = next((hold for hold in resource.holds if hold.uid == uid and not hold.places), None)
    if hold is None or not resource.started:
        return resource if hold is None else replace(resource, error=error)
    lost = Counter(replica.pool for replica in hold.replicas)
    pools = [replace(p, count=p.count - lost[at]) for at, p in enumerate(resource.pools)]
    holds = tuple(other for other in resource.holds if other is not hold)
    return replace(resource, pools=tuple(pools), holds=holds)


def resize(
    resource: PersistentResource, counts: Sequence[int], used: Used, new_uid: JobUid, now: Nanos
) -> PersistentResource:
    """Return the resource with new numbers of machines in its pools. Additional machines become a new hold.
    Unused machines are released, and machines that are not placed yet are released first. Raise ValueError if
    more machines are in use. Its message is a complete sentence."""
    left = resource.slots()
    left.subtract(used)
    dropped: set[ReplicaId] = set()
    added: list[ReplicaId] = []
    for at, (pool, count) in enumerate(zip(resource.pools, counts, strict=True)):
        kind = kind_of(pool.machine)
        own = [
            (replica, dict(hold.places).get(replica))
            for hold in reversed(resource.holds)
            for replica in reversed(hold.replicas)
            if replica.pool == at
        ]
        if count > len(own):
            first = max((replica.index for replica, _ in own), default=-1) + 1
            added += (ReplicaId(at, first + n) for n in range(count - len(own)))
        surplus = len(own) - count
        for replica, node in sorted(own, key=lambda item: item[1] is not None):
            if surplus > 0 and (node is None or left[kind, node] > 0):
                surplus -= 1
                dropped.add(replica)
                if node is not None:
                    left[kind, node] -= 1
        if surplus > 0:
            raise ValueError(
                f"{count + surplus} machines of a resource pool are in use, so their number cannot be "
                f"reduced to {count}. Wait until their jobs finish, or cancel these jobs."
            )
    holds: list[Hold] = []
    for hold in (*resource.holds, Hold(new_uid, tuple(added), created=now)):
        places = tuple((r, node) for r, node in hold.places if r not in dropped)
        if replicas := tuple(r for r in hold.replicas if r not in dropped):
            holds.append(replace(hold, replicas=replicas, places=places))
    pools = (replace(pool, count=n) for pool, n in zip(resource.pools, counts, strict=True))
    return replace(resource, pools=tuple(pools), holds=tuple(holds))


def settle(resource: PersistentResource, used: Used, has_jobs: bool) -> PersistentResource | None:
    """Return the resource after a change of its jobs, or None if the resource must be deleted. A reboot
    finishes when no job uses a machine of the resource. `has_jobs`: whether unfinished jobs use it."""
    if resource.deleted_by is not None:
        return resource if has_jobs else None
    return resource if used else replace(resource, is_rebooting=False)


def public_resource(resource: PersistentResource, used: Used) -> dict[str, Any]:
    """Return the resource in public JSON."""
    view: dict[str, Any] = msgspec.json.decode(resource.public_json)
    left: Counter[str] = Counter()
    for (kind, _), count in used.items():
        left[kind] += count
    for pool, shown in zip(resource.pools, view["resourcePools"], strict=True):
        kind = kind_of(pool.machine)
        own = min(pool.count, left[kind])
        left[kind] -= own
        shown |= {"replicaCount": str(pool.count), "usedReplicaCount": str(own)}
    view |= {
        "name": str(resource.name),
        "displayName": resource.display_name,
        "state": resource.state.value,
        "labels": dict(resource.labels),
        "createTime": text_micros(resource.created),
        "updateTime": text_micros(resource.updated),
    }
    if resource.started:
        view["startTime"] = text_micros(resource.started)
    if resource.error is not None:
        view["error"] = {"code": resource.error.code, "message": resource.error.message}
    return view
