"""Orders to agents, split into messages of limited size."""

import msgspec

from tests.engines.conformance.stage import plan_in
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import Slot
from trainshed_cluster.remote import messages
from trainshed_cluster.remote.channel import MAX_MESSAGE_BYTES


def test_launches_of_a_large_gang_use_several_messages() -> None:
    slots = [Slot(ReplicaId(0, n), "a", f"r{n}", f"r{n}", "127.0.0.1", 2222) for n in range(64)]
    gang = (("CLUSTER_SPEC", "x" * 200_000),)
    plans = [msgspec.structs.replace(plan_in(slot, JobUid(1)), environ=gang) for slot in slots]
    lines = {slot.replica: number for number, slot in enumerate(slots)}
    orders = list(messages.launches([(plan, ()) for plan in plans], lines))
    assert [plan for order in orders for plan in order.plans] == plans
    assert [line for order in orders for line in order.lines] == list(range(64))
    assert max(len(msgspec.msgpack.encode(order)) for order in orders) < MAX_MESSAGE_BYTES
    assert len(orders) == 4
