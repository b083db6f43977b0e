"""The allocations that an attempt still needs, and their nodes."""

from msgspec.structs import replace

from tests.unit.jobs import PRIMARY, WORKER
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import SlotRequest
from trainshed_cluster.remote.agent_handle import AgentHandle
from trainshed_cluster.remote.cluster import NodeNeed
from trainshed_cluster.remote.gang import Gang, GangRecord, displaced_requests
from trainshed_cluster.remote.needs import drop_unused_needs, move_replicas, with_chosen_nodes
from trainshed_cluster.remote.replica_slot import ReplicaSlot, agent_key


def test_live_replicas_keep_their_allocations_while_the_gang_waits_for_another_node() -> None:
    """Otherwise, if the wait takes too long, the engine would release the nodes of running replicas."""
    replica_slots = (
        ReplicaSlot(PRIMARY, SlotRequest(PRIMARY, "r0", "a"), allocation_index=0, launched=1),
        ReplicaSlot(WORKER, SlotRequest(WORKER, "r1", "c"), allocation_index=1),
    )
    needs = {0: (need("a"), need("b")), 1: (need("c"),), 2: (need("d"),)}
    gang = Gang(GangRecord(JobUid(7), 1, replica_slots, needs, 60.0))
    assert gang.allocations_to_acquire() == [0, 1], "allocations with replicas but without agents"
    agent = AgentHandle("n", JobUid(7), 1, 0, "a", lease=60.0)
    gang.agents[agent_key(0, "a")] = agent
    assert gang.allocations_to_acquire() == [1]
    agent.is_gone = True
    assert gang.allocations_to_acquire() == [0, 1]
    agent.is_gone, gang.record = (False, gang.record.with_replica_slot(replace(replica_slots[0], launched=0)))
    assert gang.allocations_to_acquire() == [0, 1, 2], "without running programs, no allocation is kept"


def test_replica_whose_node_left_the_allocation_gets_a_separate_allocation() -> None:
    """Otherwise the other replicas, once lost, would wait for the node of the displaced one."""
    requests = [SlotRequest(ReplicaId(1, n), f"r{n}", node) for n, node in enumerate("abbc")]
    replica_slots = tuple(ReplicaSlot(request.replica, request, allocation_index=0) for request in requests)
    vacant = replace(replica_slots[2], is_vacant=True)
    record = GangRecord(JobUid(7), 1, replica_slots, {0: (need("a"), need("b"), need("c"))}, 60.0)
    assert with_chosen_nodes(record, 0, ["a"]) is record
    assert with_chosen_nodes(record, 0, ["d", "b", "c"]).replica_slots[0].request.node == "d"
    gang = Gang(record.with_replica_slot(vacant))
    assert displaced_requests(gang, 0, ["a"]) == requests[1::2]
    record = drop_unused_needs(move_replicas(gang, requests[1::2], {}), 0, ["a"])
    assert [replica_slot.allocation_index for replica_slot in record.replica_slots] == [
        0,
        1,
        0,
        2,
    ] and record.replica_slots[2] == vacant
    assert record.needs[0] == (need("a"), need("b")), "the vacant replica keeps its slot"
    assert drop_unused_needs(record, 7, ["a"]) is record


def need(node: str) -> NodeNeed:
    return NodeNeed(node, 1, 1.0, 1 << 20)
