"""Which holds an attempt still needs, and on which nodes it has them."""

from msgspec.structs import replace

from tests.unit.jobs import PRIMARY, WORKER
from trainshed.core.names import JobUid
from trainshed.engines.port import SlotRequest
from trainshed_cluster.remote.agent_handle import AgentHandle
from trainshed_cluster.remote.cluster import NodeNeed
from trainshed_cluster.remote.gang import Gang, GangRecord, Seat, given, place


def test_who_waits_for_another_node_waits_for_that_one_alone() -> None:
    """What others run in is asked for no more, and so not given back where the wait is too long."""
    seats = (
        Seat(PRIMARY, SlotRequest(PRIMARY, "r0", "a"), part=0, launched=1),
        Seat(WORKER, SlotRequest(WORKER, "r1", "c"), part=1),
    )
    parts = {0: (need("a"), need("b")), 1: (need("c"),), 2: (need("d"),)}
    gang = Gang(GangRecord(JobUid(7), 1, seats, parts, 60.0))
    assert gang.parts_to_hold() == [0, 1], "all that have replicas and no agent"
    agent = AgentHandle("n", JobUid(7), 1, 0, "a", lease=60.0)
    gang.agents[place(0, "a")] = agent
    assert gang.parts_to_hold() == [1]
    agent.is_gone = True
    assert gang.parts_to_hold() == [0, 1]
    agent.is_gone, gang.record = False, gang.record.with_seat(replace(seats[0], launched=0))
    assert gang.parts_to_hold() == [0, 1, 2], "while nothing runs, nothing is kept from others"


def test_a_cluster_may_take_a_node_that_has_failed_out_of_a_hold() -> None:
    seats = (Seat(PRIMARY, SlotRequest(PRIMARY, "r0", "a"), part=0),)
    record = GangRecord(JobUid(7), 1, seats, {0: (need("a"), need("b"))}, 60.0)
    assert given(record, 0, ["a"]) is record
    moved = given(record, 0, ["c", "b"])
    assert moved.seats[0].request.node == "c"


def need(node: str) -> NodeNeed:
    return NodeNeed(node, 1, 1.0, 1 << 20)
