"""The service's view of one attempt on a cluster: its stored record, its agents, and the reported ends of its
programs. Pure."""

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from trainshed.core.capacity import Delay
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import LaunchRejected, Slot, SlotRequest, StartFailed
from trainshed_cluster.remote.agent_handle import AgentHandle
from trainshed_cluster.remote.cluster import SERVICE_OWNER, AllocationName, NodeNeed, Owner
from trainshed_cluster.remote.failed_starts import FailedStarts
from trainshed_cluster.remote.replica_slot import (
    Ended,
    ReplicaSlot,
    SlotState,
    SlotTrigger,
    agent_key,
    fire,
    state_of,
)

_STORED_NAMES = {
    "replica_slots": "seats",
    "needs": "parts",
    "adopted_names": "holds",
    "stop_grace": "stopped",
}
"""Names of fields in stored records. They must never change, so that the service can read older records."""


class GangRecord(msgspec.Struct, frozen=True, rename=_STORED_NAMES):
    """The stored record of an attempt whose replicas have slots (positions on a cluster) or wait for them."""

    job_uid: JobUid
    attempt: int
    replica_slots: tuple[ReplicaSlot, ...]
    #: The needs of each allocation, by the allocation's number: one for each of its nodes.
    needs: dict[int, tuple[NodeNeed, ...]]
    #: Seconds after which agents without contact to the service end their programs.
    lease: float
    #: The random suffix in the name of each current agent, by `agent_key`. It distinguishes an agent from
    #: earlier agents for the same node and allocation.
    agents: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    #: Names of allocations that this attempt has adopted from a finished attempt, by number. All other
    #: allocations are named after this attempt.
    adopted_names: dict[int, AllocationName] = msgspec.field(default_factory=dict[int, AllocationName])
    #: Grace period in ns in the order to stop the attempt; None = no such order was given.
    stop_grace: int | None = None

    @property
    def owner(self) -> Owner:
        return next((need.owner for needs in self.needs.values() for need in needs), SERVICE_OWNER)

    def replica_slot(self, replica: ReplicaId) -> ReplicaSlot | None:
        slots = (slot for slot in self.replica_slots if slot.replica == replica)
        return next(slots, None)

    def with_replica_slot(self, replica_slot: ReplicaSlot) -> "GangRecord":
        """Return a copy of the record in which `replica_slot` replaces the stored position of the same
        replica."""
        same = replica_slot.replica
        slots = (replica_slot if old.replica == same else old for old in self.replica_slots)
        return replace(self, replica_slots=tuple(slots))


class Gang(Struct):
    """An attempt's record, together with state that exists only in memory."""

    record: GangRecord
    #: The current agents, by `agent_key`: one for each node of each allocation.
    agents: dict[str, AgentHandle] = field(default_factory=dict[str, AgentHandle])
    #: The reported end of the last run (incarnation) of each replica.
    ends: dict[ReplicaId, Ended] = field(default_factory=dict[ReplicaId, Ended])
    #: The caller has requested the release of the attempt.
    is_released: bool = False
    #: The reported reason why the attempt's start waits; None = it does not wait.
    delay: Delay | None = None
    #: Agents that ended before they allocated slots (directories and addresses) for replicas, by `agent_key`.
    #: Deleted when the preparation of slots succeeds.
    failed_starts: dict[str, FailedStarts] = field(default_factory=dict[str, FailedStarts])
    #: Why replicas of the attempt can never get slots (positions on nodes); None = they may get them. Deleted
    #: when a caller has received this exception.
    rejection: LaunchRejected | StartFailed | None = None

    @property
    def key(self) -> tuple[JobUid, int]:
        return self.record.job_uid, self.record.attempt

    def agent(self, replica_slot: ReplicaSlot) -> AgentHandle | None:
        return self.agents.get(replica_slot.agent_key)

    def state(self, replica_slot: ReplicaSlot) -> SlotState:
        return state_of(replica_slot, self.ends.get(replica_slot.replica))

    def is_live(self, replica_slot: ReplicaSlot) -> bool:
        """Return whether a program of the replica runs or may run."""
        return self.state(replica_slot).is_live

    def live_slots(self) -> list[ReplicaSlot]:
        return [slot for slot in self.record.replica_slots if self.is_live(slot)]

    def fire(self, replica_slot: ReplicaSlot, trigger: SlotTrigger, **changes: Any) -> ReplicaSlot:
        """Return the replica slot after an event, `trigger` (see `replica_slot.fire`). Does not change the
        record."""
        return fire(replica_slot, self.ends.get(replica_slot.replica), trigger, **changes)

    def record_end(self, end: Ended) -> None:
        """Record the reported end of a run (incarnation) of a replica. Ignored if a later run of that replica
        has already ended."""
        known = self.ends.get(end.replica)
        if known is None or known.incarnation <= end.incarnation:
            self.ends[end.replica] = end

    def needs_agent(self, index: int, node: str) -> bool:
        agent = self.agents.get(agent_key(index, node))
        return agent is None or agent.is_gone or agent.failure is not None

    def allocations_to_acquire(self) -> list[int]:
        """Return the numbers of the allocations that must be acquired because their agents are missing.

        If no program runs, the result contains all allocations. While the attempt waits for one allocation,
        it must not keep the others from other jobs.
        """
        missing = {
            slot.allocation_index
            for slot in self.record.replica_slots
            if not slot.is_vacant and self.needs_agent(slot.allocation_index, slot.node)
        }
        if missing and not self.live_slots():
            return list(self.record.needs)
        return [index for index in self.record.needs if index in missing]

    def replica_slots_of(self, agent: AgentHandle) -> Iterator[ReplicaSlot]:
        """Yield the positions (slots) of the replicas that an agent serves. Yields nothing if a newer agent
        has replaced this agent."""
        key = agent_key(agent.allocation_index, agent.node)
        if self.agents.get(key) is agent:
            yield from (slot for slot in self.record.replica_slots if slot.agent_key == key)

    def image_of(self, index: int, node: str) -> str | None:
        """Return the container image of the job in which the agent runs; None = it runs in no image of the
        job."""
        node_needs = self.record.needs.get(index, ())
        return next((need.image for need in node_needs if need.node == node), None)

    def slots(self) -> tuple[Slot, ...]:
        return tuple(entry.slot for entry in self.record.replica_slots if entry.slot is not None)

    def hosts(self) -> tuple[tuple[str, str], ...]:
        """Return the (hostname, address) pairs of all replicas whose agent has allocated their slot."""
        return tuple((slot.hostname, slot.address) for slot in self.slots())

    def raise_rejection(self) -> None:
        """Raise `rejection` if it is set, and clear it, so that it is raised only once."""
        rejection, self.rejection = self.rejection, None
        if rejection is not None:
            raise rejection

    def is_complete(self) -> bool:
        """Return whether every replica has a slot (a directory and address) and an agent that is not gone.
        Replicas that wait for another node (vacant slots) are ignored."""
        for entry in self.record.replica_slots:
            agent = self.agent(entry)
            if not entry.is_vacant and (entry.slot is None or agent is None or agent.is_gone):
                return False
        return True


def vacate(gang: Gang, replicas: Iterable[ReplicaId]) -> GangRecord:
    """Return the record in which the slots of `replicas` are vacant: these replicas have lost their node and
    wait for another one. Returns the same record if nothing changes."""
    record = gang.record
    for before in filter(None, map(gang.record.replica_slot, replicas)):
        after = gang.fire(before, SlotTrigger.VACATED)
        if after is not before:
            record = record.with_replica_slot(after)
    return record


def displaced_requests(gang: Gang, index: int, nodes: Container[str]) -> list[SlotRequest]:
    """Return new slot requests for replicas whose node the cluster has removed from their allocation. A slot
    is a replica's position on the cluster. `nodes`: the remaining nodes of allocation number `index`."""
    return [
        slot.request
        for slot in gang.record.replica_slots
        if (slot.allocation_index == index and slot.node not in nodes)
        and gang.state(slot) in (SlotState.WAITING, SlotState.READY)
    ]


def finished_on(gang: Gang, nodes: Container[str]) -> set[ReplicaId]:
    """Return the replicas on these nodes that run no program, because their last program has ended."""
    return {
        slot.replica
        for slot in gang.record.replica_slots
        if slot.node in nodes and slot.launched and gang.state(slot) is SlotState.READY
    }


def has_to_move(gang: Gang, replica_slot: ReplicaSlot, node: str) -> bool:
    """Return whether a request for `node` moves the replica to another node, or gives it a node again after
    it has lost its node.

    If the cluster has chosen another node than requested, callers may not know that yet. They then repeat the
    request for the original node, which moves nothing.
    """
    is_wish = node == replica_slot.wish and (not replica_slot.launched or gang.is_live(replica_slot))
    return replica_slot.is_vacant or (node != replica_slot.node and not is_wish)


def include_pending(
    gang: Gang, moving: Sequence[SlotRequest], requests: Iterable[SlotRequest]
) -> list[SlotRequest]:
    """Return the slot requests (requests for positions on nodes) of further replicas that must be renewed,
    because these replicas share a pending allocation with a replica that moves.

    Such an allocation includes nodes that the replicas leave, so the cluster might never grant it. Granted
    allocations do not change.
    """
    movers = {request.replica for request in moving}
    left = {slot.allocation_index for slot in gang.record.replica_slots if slot.replica in movers}
    granted = {agent.allocation_index for agent in gang.agents.values() if agent.is_connected}
    granted |= {slot.allocation_index for slot in gang.live_slots()}
    return [
        replace(request, node=slot.node)
        for request in requests
        if request.replica not in movers
        and (slot := gang.record.replica_slot(request.replica))
        and slot.allocation_index in left - granted
    ]


def allocation_name(service: str, record: GangRecord, index: int) -> AllocationName:
    return record.adopted_names.get(index) or AllocationName(
        service, record.job_uid, record.attempt, index, record.owner.user
    )
