"""The service's view of one attempt on a cluster: the replicas' nodes and states, and the part of it that is
stored. It also decides about agents that ended before they connected. Pure."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from trainshed.core.capacity import Delay, Node, WaitReason
from trainshed.core.failure.evidence import Cause
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import LaunchRejected, Slot, SlotRequest, StartFailed
from trainshed_cluster.remote.agent_handle import AgentHandle
from trainshed_cluster.remote.cluster import SERVICE_OWNER, AllocationName, NodeNeed, Owner


class ReplicaSlot(msgspec.Struct, frozen=True, rename={"allocation_index": "part"}):
    """The position of a replica on the cluster, and the state of its incarnations."""

    replica: ReplicaId
    request: SlotRequest
    #: Number of its allocation in the attempt.
    allocation_index: int
    #: The slot that its agent allocated, with the cluster's name of the node; None = none yet.
    slot: Slot | None = None
    #: The last launched incarnation; 0 = none.
    launched: int = 0
    #: No incarnation up to this number may start.
    forbidden: int = 0
    #: The identity of its program (`launch.documents.identity`); None = no program was launched.
    identity: str | None = None
    #: The incarnation that was lost with its agent; 0 = none.
    lost: int = 0
    #: Why it was lost; None = it was not lost.
    cause: str | None = None
    #: The kind of the loss.
    loss: Cause = Cause.LOST
    #: The incarnation that ended before its agent shut down and can no longer be queried; 0 = none.
    ended: int = 0
    #: The port of its last slot, which its peers use; None = it had no slot.
    port: int | None = None
    #: The requested node, if the cluster has chosen another one; None = it has not.
    wish: str | None = None
    #: The replica waits for another node, so that this slot needs no agent.
    is_vacant: bool = False


_STORED_NAMES = {"replica_slots": "seats", "needs": "parts", "adopted_names": "holds"}
"""Encoded names of fields, unchanged for records of earlier releases."""


class GangRecord(msgspec.Struct, frozen=True, rename=_STORED_NAMES):
    """An attempt that has slots or waits for them."""

    job_uid: JobUid
    attempt: int
    replica_slots: tuple[ReplicaSlot, ...]
    #: The needs of each allocation, by its number.
    needs: dict[int, tuple[NodeNeed, ...]]
    #: Seconds that agents survive without contact to the service.
    lease: float
    #: A random suffix of the current agent's name, by `agent_key`. It distinguishes the agent from its
    #: predecessors.
    agents: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    #: Names of adopted allocations, by number. All other allocations are named after the attempt.
    adopted_names: dict[int, AllocationName] = msgspec.field(
        default_factory=dict[int, AllocationName]
    )
    #: Grace period in ns with which the attempt was stopped; None = it was not stopped.
    stopped: int | None = None

    @property
    def owner(self) -> Owner:
        return next((need.owner for some in self.needs.values() for need in some), SERVICE_OWNER)

    def replica_slot(self, replica: ReplicaId) -> ReplicaSlot | None:
        return next(
            (
                replica_slot
                for replica_slot in self.replica_slots
                if replica_slot.replica == replica
            ),
            None,
        )

    def with_replica_slot(self, replica_slot: ReplicaSlot) -> "GangRecord":
        """Return a copy of the record with this replica slot replaced."""
        replica_slots = tuple(
            replica_slot if other.replica == replica_slot.replica else other
            for other in self.replica_slots
        )
        return replace(self, replica_slots=replica_slots)


def agent_key(index: int, node: str) -> str:
    """Return the key of an agent: one node of one allocation."""
    return f"{index}/{node}"


START_INTERVALS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each further start of an agent. After the last one, no start follows."""


class FailedStarts(Struct, frozen=True):
    """Failed starts of agents with one key since an agent last connected."""

    count: int
    #: Why the last agent ended: a sentence without its full stop.
    why: str

    def pause(self, pauses: Sequence[float]) -> float | None:
        """Return the seconds until the next start; None = no start is left."""
        return pauses[self.count - 1] if self.count <= len(pauses) else None


def add_failed_start(before: FailedStarts | None, why: str) -> FailedStarts:
    """Add a failed start to the previous ones."""
    return FailedStarts((before.count if before else 0) + 1, why)


def delay_of_start(node: str, failed: FailedStarts, pause: float) -> Delay:
    """Return the delay to report until the next start."""
    times = f", {failed.count} times so far" if failed.count > 1 else ""
    soon = f"in {pause:g} s" if pause else "at once"
    return Delay(
        WaitReason.ENGINE,
        f"the agent on node {node} ended before it connected{times}: {failed.why}; another one starts "
        f"{soon}",
    )


def start_failure_message(node: str, failed: FailedStarts) -> str:
    """Return the message for a node where no further start is tried."""
    return f"agents do not start on node {node}: {failed.count} failed, the last one because: {failed.why}"


def is_node_at_fault(node: str, came: Mapping[str, float]) -> bool:
    """Return whether the node is at fault: an agent connected from another node, and later than from this
    one. `came`: time of the last connection, by node."""
    here = came.get(node, float("-inf"))
    return any(at > here for name, at in came.items() if name != node)


Ended = ReplicaExited | ReplicaLost

AGENT_MEMORY = 256 << 20
"""Memory in bytes of an agent and its shims on a node. Without it, a cluster's limit could kill a program
that respects its own limit."""
DEFAULT_MEMORY = 256 << 20
"""Bytes of a replica whose machine type has no memory size in the table."""


class Gang(Struct):
    """An attempt's record, and the state that is not stored."""

    record: GangRecord
    #: The current agents, by `agent_key`.
    agents: dict[str, AgentHandle] = field(default_factory=dict[str, AgentHandle])
    #: The reported end of each replica's last incarnation.
    ends: dict[ReplicaId, Ended] = field(default_factory=dict[ReplicaId, Ended])
    #: The caller has requested the release of the attempt.
    is_released: bool = False
    #: The last reported reason why its start waits; None = none.
    delay: Delay | None = None
    #: Agents that ended before they allocated slots, by `agent_key`, since the last success.
    failed_starts: dict[str, FailedStarts] = field(default_factory=dict[str, FailedStarts])
    #: Why its slots can never be allocated, until a caller receives the exception.
    rejection: LaunchRejected | StartFailed | None = None

    @property
    def key(self) -> tuple[JobUid, int]:
        return self.record.job_uid, self.record.attempt

    def agent(self, replica_slot: ReplicaSlot) -> AgentHandle | None:
        return self.agents.get(agent_key(replica_slot.allocation_index, replica_slot.request.node))

    def needs_agent(self, index: int, node: str) -> bool:
        agent = self.agents.get(agent_key(index, node))
        return agent is None or agent.is_gone or agent.failure is not None

    def allocations_to_acquire(self) -> list[int]:
        """Return the numbers of allocations to acquire for missing agents. As long as no program runs, these
        are all allocations, so that none is kept from other jobs while another one is pending."""
        missing = {
            replica_slot.allocation_index
            for replica_slot in self.record.replica_slots
            if not replica_slot.is_vacant
            and self.needs_agent(replica_slot.allocation_index, replica_slot.request.node)
        }
        is_live = any(map(self.is_live, self.record.replica_slots))
        return [
            index for index in self.record.needs if index in missing or (missing and not is_live)
        ]

    def replica_slots_of(self, agent: AgentHandle) -> Iterator[ReplicaSlot]:
        """Yield the slots of an agent's replicas, if it is the current agent of its key."""
        if self.agents.get(agent_key(agent.allocation_index, agent.node)) is agent:
            for replica_slot in self.record.replica_slots:
                if (replica_slot.allocation_index, replica_slot.request.node) == (
                    agent.allocation_index,
                    agent.node,
                ):
                    yield replica_slot

    def image_of(self, index: int, node: str) -> str | None:
        """Return the job's container image that the agent runs in; None = none."""
        node_needs = self.record.needs.get(index, ())
        return next((need.image for need in node_needs if need.node == node), None)

    def is_live(self, replica_slot: ReplicaSlot) -> bool:
        """Return whether a program of the replica runs or may run."""
        end = self.ends.get(replica_slot.replica)
        is_over = end is not None and end.incarnation >= replica_slot.launched
        return replica_slot.launched > max(replica_slot.lost, replica_slot.ended) and not is_over

    def slots(self) -> tuple[Slot, ...]:
        return tuple(
            replica_slot.slot
            for replica_slot in self.record.replica_slots
            if replica_slot.slot is not None
        )

    def hosts(self) -> tuple[tuple[str, str], ...]:
        """Return (hostname, address) of each replica that has a slot."""
        return tuple((slot.hostname, slot.address) for slot in self.slots())

    def raise_rejection(self) -> None:
        """Raise the pending `rejection` once: LaunchRejected, StartFailed."""
        rejection, self.rejection = self.rejection, None
        if rejection is not None:
            raise rejection

    def is_complete(self) -> bool:
        """Return whether every replica that is not vacant has a slot and an agent that is not gone."""
        return all(
            replica_slot.is_vacant
            or (
                replica_slot.slot is not None
                and (agent := self.agent(replica_slot)) is not None
                and not agent.is_gone
            )
            for replica_slot in self.record.replica_slots
        )


def new_record(
    job_uid: JobUid,
    attempt: int,
    requests: Sequence[SlotRequest],
    nodes: Mapping[str, Node],
    *,
    lease: float,
    owner: Owner,
    anywhere: bool,
    apart: bool,
) -> GangRecord:
    """Create a gang's first record. Nodes with the same needs form one allocation, because clusters grant
    equal nodes at once.

    Args:
        anywhere: The cluster chooses the nodes.
        apart: Each replica has its own allocation.
    """
    needs: dict[int, tuple[NodeNeed, ...]] = {}
    places: dict[ReplicaId, int] = {}
    wanted = node_needs(
        requests, nodes, owner=owner, anywhere=anywhere, apart=apart, gang_size=len(requests)
    )
    for need, replicas in wanted:
        for number, others in () if apart else needs.items():
            # One node has two needs if its replicas have different routes.
            nodes_there = {other.node for other in others}
            if need.node not in nodes_there and need == replace(others[0], node=need.node):
                needs[number] = (*others, need)
                break
        else:
            number = len(needs)
            needs[number] = (need,)
        places |= dict.fromkeys(replicas, number)
    replica_slots = tuple(
        ReplicaSlot(request.replica, request, places[request.replica]) for request in requests
    )
    return GangRecord(job_uid, attempt, replica_slots, needs, lease)


def with_chosen_nodes(record: GangRecord, index: int, nodes: Sequence[str]) -> GangRecord:
    """Return the record with an allocation on the nodes that the cluster has chosen. Returns the same record
    if nothing changes."""
    some = record.needs[index]
    # A cluster may remove a failed node from an allocation.
    if set(nodes) <= {need.node for need in some}:
        return record
    chosen = {need.node: node for need, node in zip(some, nodes, strict=True)}
    replica_slots = tuple(
        replace(
            replica_slot,
            request=replace(replica_slot.request, node=chosen[replica_slot.request.node]),
            wish=replica_slot.request.node,
        )
        if replica_slot.allocation_index == index
        else replica_slot
        for replica_slot in record.replica_slots
    )
    there = tuple(replace(need, node=chosen[need.node]) for need in some)
    return replace(record, replica_slots=replica_slots, needs=record.needs | {index: there})


def vacate(gang: Gang, replicas: Iterable[ReplicaId]) -> GangRecord:
    """Return the record with the slots of replicas that have lost their node marked vacant. Returns the same
    record if nothing changes. A replica that never had a slot is not marked, because its peers wait for its
    first slot."""
    record = gang.record
    for replica_slot in filter(None, map(gang.record.replica_slot, replicas)):
        if (
            replica_slot.slot is not None
            and not replica_slot.is_vacant
            and not gang.is_live(replica_slot)
        ):
            record = record.with_replica_slot(
                replace(replica_slot, is_vacant=True, ended=replica_slot.launched)
            )
    return record


def displaced_requests(gang: Gang, index: int, nodes: Container[str]) -> list[SlotRequest]:
    """Return the requests of replicas whose node the cluster has removed from their allocation."""
    return [
        replica_slot.request
        for replica_slot in gang.record.replica_slots
        if (replica_slot.allocation_index == index and replica_slot.request.node not in nodes)
        and not (replica_slot.is_vacant or gang.is_live(replica_slot))
    ]


def drop_unused_needs(record: GangRecord, index: int, nodes: Container[str]) -> GangRecord:
    """Return the record without needs of nodes that are neither in the allocation nor in a replica slot."""
    if index not in record.needs:
        return record
    stay = {
        replica_slot.request.node
        for replica_slot in record.replica_slots
        if replica_slot.allocation_index == index
    }
    some = [need for need in record.needs[index] if need.node in stay or need.node in nodes]
    return replace(record, needs=record.needs | {index: tuple(some)})


def finished_on(gang: Gang, nodes: Container[str]) -> set[ReplicaId]:
    """Return the replicas whose programs ended on one of the nodes and have not started again."""
    return {
        replica_slot.replica
        for replica_slot in gang.record.replica_slots
        if replica_slot.request.node in nodes
        and replica_slot.launched
        and replica_slot.slot is not None
        and not replica_slot.is_vacant
        and not gang.is_live(replica_slot)
    }


def has_to_move(gang: Gang, replica_slot: ReplicaSlot, node: str) -> bool:
    """Return whether a request for `node` moves the replica, or refills a vacant slot. Until a caller learns
    the node that the cluster has chosen, requests repeat the original wish."""
    is_wish = node == replica_slot.wish and (
        not replica_slot.launched or gang.is_live(replica_slot)
    )
    return replica_slot.is_vacant or (node != replica_slot.request.node and not is_wish)


def include_pending(
    gang: Gang, moving: Sequence[SlotRequest], requests: Iterable[SlotRequest]
) -> list[SlotRequest]:
    """Return the requests of further replicas to renew. Their pending request includes nodes that replicas
    leave, so that it may never be granted. Granted allocations do not change."""
    left = {
        replica_slot.allocation_index
        for request in moving
        if (replica_slot := gang.record.replica_slot(request.replica))
    }
    held = {agent.allocation_index for agent in gang.agents.values() if agent.is_connected}
    held |= {
        replica_slot.allocation_index
        for replica_slot in gang.record.replica_slots
        if gang.is_live(replica_slot)
    }
    movers = {request.replica for request in moving}
    return [
        replace(request, node=replica_slot.request.node)
        for request in requests
        if request.replica not in movers
        and (replica_slot := gang.record.replica_slot(request.replica))
        and replica_slot.allocation_index in left - held
    ]


def move_replicas(
    record: GangRecord,
    requests: Sequence[SlotRequest],
    nodes: Mapping[str, Node],
    *,
    anywhere: bool = False,
    apart: bool = False,
) -> GangRecord:
    """Return the record with those replicas on the requested nodes, in a new allocation for each need. Empty
    allocations are removed."""
    needs = dict(record.needs)
    first = max(needs, default=-1) + 1
    places: dict[ReplicaId, int] = {}
    wanted = node_needs(
        requests,
        nodes,
        owner=record.owner,
        anywhere=anywhere,
        apart=apart,
        gang_size=len(record.replica_slots),
    )
    for number, (need, replicas) in enumerate(wanted, first):
        needs[number] = (need,)
        places |= dict.fromkeys(replicas, number)
    for request in requests:
        replica_slot = record.replica_slot(request.replica)
        assert replica_slot is not None
        there = replace(
            replica_slot,
            request=request,
            allocation_index=places[request.replica],
            slot=None,
            wish=None,
        )
        record = record.with_replica_slot(
            replace(there, ended=replica_slot.launched, is_vacant=False)
        )
    used = {replica_slot.allocation_index for replica_slot in record.replica_slots}
    return replace(record, needs={number: some for number, some in needs.items() if number in used})


def node_needs(
    requests: Iterable[SlotRequest],
    nodes: Mapping[str, Node],
    *,
    owner: Owner = SERVICE_OWNER,
    anywhere: bool = False,
    apart: bool = False,
    gang_size: int = 1,
) -> list[tuple[NodeNeed, tuple[ReplicaId, ...]]]:
    """Return the total needs on each node, with the replicas that share them.

    Replicas share a need if their machine types have the same route (`Acceptance.routes`). A need includes
    the agent's memory as far as the node has free memory, because the scheduler has already placed the
    replicas.

    Args:
        apart: Return a separate need for each replica.
        anywhere: The cluster chooses the nodes and rejects impossible needs. The agent's memory is included
            unless no node is that large.
        gang_size: Number of replicas in the gang.
    """
    by_way: dict[tuple[object, ...], list[SlotRequest]] = {}
    for request in requests:
        here = nodes.get(request.node)
        way = here.accepts.position(request.machine) if here else None
        own = request.replica if apart else None
        by_way.setdefault((request.node, way, own), []).append(request)
    wanted: list[tuple[NodeNeed, tuple[ReplicaId, ...]]] = []
    for some in by_way.values():
        node = some[0].node
        vcpus = sum(request.vcpus or 0 for request in some) or 1.0
        memory_asked = sum(request.memory_bytes or DEFAULT_MEMORY for request in some)
        memory = memory_asked + AGENT_MEMORY
        if anywhere:
            largest = max((node.memory_bytes for node in nodes.values()), default=memory)
            memory = min(memory, max(memory_asked, largest))
        elif node in nodes:
            here = nodes[node]
            vcpus = min(vcpus, here.vcpus)
            memory = min(memory, max(memory_asked, here.memory_bytes - here.others.memory_bytes))
            memory = min(memory, here.memory_bytes)
        devices = sum(request.accelerators for request in some)
        typical = next((request for request in some if request.accelerators), some[0])
        machine, seconds = typical.machine, typical.seconds
        need = NodeNeed(node, len(some), vcpus, memory, devices, machine, owner, seconds)
        if apart:
            need = replace(
                need,
                replica=str(some[0].replica),
                hostname=some[0].hostname,
                image=some[0].image,
                gang_size=gang_size,
            )
        wanted.append((need, tuple(request.replica for request in some)))
    return wanted


def allocation_name(service: str, record: GangRecord, index: int) -> AllocationName:
    return record.adopted_names.get(index) or AllocationName(
        service, record.job_uid, record.attempt, index, record.owner.user
    )
