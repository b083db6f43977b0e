"""Which holds an attempt still needs, and on which nodes it has them."""

from msgspec.structs import replace

from tests.unit.jobs import PRIMARY, WORKER
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import SlotRequest
from trainshed_cluster.remote import gang as gangs
from trainshed_cluster.remote.agent_handle import AgentHandle
from trainshed_cluster.remote.cluster import NodeNeed
from trainshed_cluster.remote.gang import Gang, GangRecord, Seat, place


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


def test_who_has_lost_his_node_is_asked_for_by_himself_and_his_need_goes() -> None:
    """Else those who stay, once they are lost too, would wait for what he has now."""
    requests = [SlotRequest(ReplicaId(1, n), f"r{n}", node) for n, node in enumerate("abbc")]
    seats = tuple(Seat(request.replica, request, part=0) for request in requests)
    vacant = replace(seats[2], is_vacant=True)
    record = GangRecord(JobUid(7), 1, seats, {0: (need("a"), need("b"), need("c"))}, 60.0)
    assert gangs.given(record, 0, ["a"]) is record
    assert gangs.given(record, 0, ["d", "b", "c"]).seats[0].request.node == "d"
    gang = Gang(record.with_seat(vacant))
    assert gangs.taken_out(gang, 0, ["a"]) == requests[1::2]
    record = gangs.without_needs(gangs.moved(gang.record, requests[1::2], {}), 0, ["a"])
    assert [seat.part for seat in record.seats] == [0, 1, 0, 2] and record.seats[2] == vacant
    assert record.parts[0] == (need("a"), need("b")), "the one who waits keeps his place"
    assert gangs.without_needs(record, 7, ["a"]) is record


def need(node: str) -> NodeNeed:
    return NodeNeed(node, 1, 1.0, 1 << 20)
