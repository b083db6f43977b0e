"""Computes the needs of an attempt: which nodes form one allocation, and which resources the attempt needs on
each node. Pure."""

from collections.abc import Container, Iterable, Mapping, Sequence

from msgspec.structs import replace

from trainshed.core.capacity import Node
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import SlotRequest
from trainshed_cluster.remote.cluster import SERVICE_OWNER, NodeNeed, Owner
from trainshed_cluster.remote.gang import Gang, GangRecord
from trainshed_cluster.remote.replica_slot import ReplicaSlot, SlotTrigger

AGENT_MEMORY = 256 << 20
"""Memory in bytes of an agent and its shims on a node. Allocations include this memory. Otherwise the
cluster's memory limit could kill a program that respects its own limit."""
DEFAULT_MEMORY = 256 << 20
"""Memory in bytes of a replica whose machine type has no memory size in the table of machine types."""


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
    """Create a gang's first record. Nodes with the same needs form one allocation, because a cluster can
    grant equal nodes in one request.

    Args:
        anywhere: The cluster chooses the nodes.
        apart: Each replica has its own allocation.
    """
    needs: dict[int, tuple[NodeNeed, ...]] = {}
    indexes: dict[ReplicaId, int] = {}
    wanted = node_needs(requests, nodes, owner=owner, anywhere=anywhere, apart=apart, gang_size=len(requests))
    for need, replicas in wanted:
        for index, earlier in () if apart else needs.items():
            # An allocation contains each node only once. If the replicas on a node have different routes, the
            # node's needs are therefore in different allocations.
            is_new_node = need.node not in {other.node for other in earlier}
            if is_new_node and need == replace(earlier[0], node=need.node):
                needs[index] = (*earlier, need)
                break
        else:
            index = len(needs)
            needs[index] = (need,)
        indexes |= dict.fromkeys(replicas, index)
    replica_slots = tuple(
        ReplicaSlot(request.replica, request, indexes[request.replica]) for request in requests
    )
    return GangRecord(job_uid, attempt, replica_slots, needs, lease)


def with_chosen_nodes(record: GangRecord, index: int, nodes: Sequence[str]) -> GangRecord:
    """Return the record after the cluster has chosen the nodes of allocation number `index`. The needs and
    replicas of the allocation are then on these nodes. Returns the same record if nothing changes."""
    needs = record.needs[index]
    # The record already contains all nodes. The allocation may have fewer, because a cluster may remove a
    # failed node.
    if set(nodes) <= {need.node for need in needs}:
        return record
    chosen = {need.node: node for need, node in zip(needs, nodes, strict=True)}
    replica_slots = tuple(
        replace(slot, request=replace(slot.request, node=chosen[slot.node]), wish=slot.node)
        if slot.allocation_index == index
        else slot
        for slot in record.replica_slots
    )
    on_chosen = tuple(replace(need, node=chosen[need.node]) for need in needs)
    return replace(record, replica_slots=replica_slots, needs=record.needs | {index: on_chosen})


def drop_unused_needs(record: GangRecord, index: int, nodes: Container[str]) -> GangRecord:
    """Return the record without the needs of nodes that the allocation does not include and no replica slot
    uses."""
    if index not in record.needs:
        return record
    used = {slot.node for slot in record.replica_slots if slot.allocation_index == index}
    needs = [need for need in record.needs[index] if need.node in used or need.node in nodes]
    return replace(record, needs=record.needs | {index: tuple(needs)})


def move_replicas(
    gang: Gang,
    requests: Sequence[SlotRequest],
    nodes: Mapping[str, Node],
    *,
    anywhere: bool = False,
    apart: bool = False,
) -> GangRecord:
    """Return the record in which the replicas of `requests` are on the requested nodes. The needs of these
    replicas are in new allocations. Allocations that no replica uses any longer are removed."""
    record = gang.record
    needs = dict(record.needs)
    indexes: dict[ReplicaId, int] = {}
    wanted = node_needs(
        requests,
        nodes,
        owner=record.owner,
        anywhere=anywhere,
        apart=apart,
        gang_size=len(record.replica_slots),
    )
    for index, (need, replicas) in enumerate(wanted, max(needs, default=-1) + 1):
        needs[index] = (need,)
        indexes |= dict.fromkeys(replicas, index)
    for request in requests:
        slot = record.replica_slot(request.replica)
        assert slot is not None
        index = indexes[request.replica]
        moved = gang.fire(slot, SlotTrigger.MOVED, request=request, allocation_index=index)
        record = record.with_replica_slot(moved)
    used = {slot.allocation_index for slot in record.replica_slots}
    return replace(record, needs={index: need for index, need in needs.items() if index in used})


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

    Replicas share a need if their machine types have the same route (`Acceptance.routes`). A need also
    includes memory for the agent, but only as much as the node has free, because the scheduler has already
    placed the replicas.

    Args:
        apart: Return a separate need for each replica.
        anywhere: The cluster chooses the nodes and rejects impossible needs. The agent's memory is included
            unless even the largest node is too small.
        gang_size: Number of replicas in the gang.
    """
    groups: dict[tuple[object, ...], list[SlotRequest]] = {}
    for request in requests:
        node = nodes.get(request.node)
        route = node.accepts.position(request.machine) if node else None
        key = request.node, route, request.replica if apart else None
        groups.setdefault(key, []).append(request)
    wanted: list[tuple[NodeNeed, tuple[ReplicaId, ...]]] = []
    for group in groups.values():
        first = group[0]
        vcpus = sum(request.vcpus or 0 for request in group) or 1.0
        requested = sum(request.memory_bytes or DEFAULT_MEMORY for request in group)
        memory = requested + AGENT_MEMORY
        if anywhere:
            largest = max((node.memory_bytes for node in nodes.values()), default=memory)
            memory = min(memory, max(requested, largest))
        elif node := nodes.get(first.node):
            vcpus = min(vcpus, node.vcpus)
            memory = min(memory, max(requested, node.memory_bytes - node.others.memory_bytes))
            memory = min(memory, node.memory_bytes)
        devices = sum(request.accelerators for request in group)
        typical = next((request for request in group if request.accelerators), first)
        machine, seconds = typical.machine, typical.seconds
        need = NodeNeed(first.node, len(group), vcpus, memory, devices, machine, owner, seconds)
        if apart:
            need = replace(
                need,
                replica=str(first.replica),
                hostname=first.hostname,
                image=first.image,
                gang_size=gang_size,
            )
        wanted.append((need, tuple(request.replica for request in group)))
    return wanted
