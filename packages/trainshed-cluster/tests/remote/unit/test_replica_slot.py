"""The transition table of replica slots, which are the positions of replicas on a cluster. The table has a
cell for every state and trigger, and is consistent with the fields that determine a state."""

import pytest
from msgspec.structs import replace

from tests.unit.jobs import PRIMARY
from trainshed.core.failure.evidence import Cause
from trainshed.core.lifecycle.replica_events import ReplicaLost
from trainshed.core.lifecycle.transition import Ignore, Illegal, IllegalTransition, Next
from trainshed.engines.port import Slot, SlotRequest
from trainshed_cluster.remote.replica_slot import TABLE, ReplicaSlot, SlotState, SlotTrigger, fire, state_of

REQUEST = SlotRequest(PRIMARY, "r0", "a")
SLOT = Slot(PRIMARY, "a", "r0", "127.0.0.1", "127.0.0.1", 2222)
NEW = ReplicaSlot(PRIMARY, REQUEST, allocation_index=0)
RUNNING = replace(NEW, slot=SLOT, launched=2, lost=1)
SLOTS: dict[SlotState, tuple[ReplicaSlot, ...]] = {
    SlotState.WAITING: (NEW, replace(NEW, launched=2, ended=2)),
    SlotState.READY: (replace(NEW, slot=SLOT), replace(NEW, slot=SLOT, launched=2, lost=2, ended=1)),
    SlotState.RUNNING: (RUNNING,),
    SlotState.DETACHED: (replace(NEW, launched=2, lost=1),),
    SlotState.VACANT: (replace(NEW, slot=SLOT, launched=2, ended=2, is_vacant=True),),
}
"""Replica slots (positions of replicas on a cluster) in each state."""
VALUES: dict[SlotTrigger, dict[str, object]] = {
    SlotTrigger.ALLOCATED: {"slot": SLOT, "port": 2222},
    SlotTrigger.LAUNCHED: {"launched": 3, "identity": "i"},
    SlotTrigger.REJECTED: {"launched": 3},
    SlotTrigger.AGENT_LOST: {"cause": "node a is gone", "loss": Cause.NODE_FAILED},
    SlotTrigger.AGENT_REPLACED: {},
    SlotTrigger.VACATED: {},
    SlotTrigger.MOVED: {"request": replace(REQUEST, node="b"), "allocation_index": 1},
}
"""Values of each trigger."""
CELLS = [
    pytest.param(slot, state, trigger, id=f"{state.name}-{trigger.name}-{number}")
    for state, trigger in TABLE.cells
    for number, slot in enumerate(SLOTS[state])
]


@pytest.mark.parametrize(("slot", "state", "trigger"), CELLS)
def test_each_trigger_changes_a_replica_slot_to_the_state_in_the_transition_table(
    slot: ReplicaSlot, state: SlotState, trigger: SlotTrigger
) -> None:
    assert state_of(slot, None) is state
    match TABLE.cells[state, trigger]:
        case Next(after):
            changed = fire(slot, None, trigger, **VALUES[trigger])
            assert state_of(changed, None) is after
            assert changed.is_vacant is (after is SlotState.VACANT)
        case Ignore(why):
            assert why and fire(slot, None, trigger, **VALUES[trigger]) is slot
        case Illegal(why):
            with pytest.raises(IllegalTransition, match=why):
                fire(slot, None, trigger, **VALUES[trigger])


def test_replica_moves_only_without_a_live_program() -> None:
    """spec/invariants#one-incarnation: never two live runs (incarnations) of one replica."""
    for state in SlotState:
        cell = TABLE.cells[state, SlotTrigger.MOVED]
        assert isinstance(cell, Illegal if state.is_live else Next), state


def test_reported_end_of_an_incarnation_makes_a_running_replica_slot_ready() -> None:
    end = ReplicaLost(attempt=1, replica=PRIMARY, incarnation=2, cause="killed")
    assert state_of(RUNNING, end) is SlotState.READY
    assert state_of(RUNNING, replace(end, incarnation=1)) is SlotState.RUNNING


def test_lost_incarnation_keeps_the_cause_of_its_loss() -> None:
    lost = fire(RUNNING, None, SlotTrigger.AGENT_LOST, cause="no power", loss=Cause.NODE_FAILED)
    assert (lost.lost, lost.cause, lost.loss) == (2, "no power", Cause.NODE_FAILED)
    moved = fire(lost, None, SlotTrigger.MOVED, request=REQUEST, allocation_index=1)
    assert (moved.slot, moved.ended, moved.lost) == (None, 2, 2)
