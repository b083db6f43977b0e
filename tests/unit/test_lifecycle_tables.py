"""The three transition tables are complete, and final states have no successors. `test_lifecycle_walk` covers
all cells."""

import enum
from typing import Any

import pytest

from trainshed.core.lifecycle import transition
from trainshed.core.lifecycle.states import AttemptState, JobState, JobTrigger, ReplicaState, ReplicaTrigger
from trainshed.core.lifecycle.transition import Ignore, Illegal, IllegalTransition, Next, Table

AnyTable = Table[Any, Any]

TABLES: list[AnyTable] = [transition.JOB, transition.ATTEMPT, transition.REPLICA]
ENDS: dict[str, set[enum.StrEnum]] = {
    "job": {s for s in JobState if s.is_final},
    "attempt": {AttemptState.OVER},
    "replica": set(),  # A replica has no final state, since it ends with its attempt.
}
CELLS = [(table, state, trigger) for table in TABLES for state, trigger in table.cells]


def successors(table: AnyTable, state: enum.StrEnum) -> set[enum.StrEnum]:
    ways = (cell for (before, _), cell in table.cells.items() if before is state)
    return {cell.state for cell in ways if isinstance(cell, Next)}


def reachable(table: AnyTable, first: enum.StrEnum) -> set[enum.StrEnum]:
    seen, todo = {first}, [first]
    while todo:
        new = successors(table, todo.pop()) - seen
        seen |= new
        todo += new
    return seen


def test_every_transition_table_cell_changes_ignores_or_raises_as_declared() -> None:
    """spec/lifecycle#states: a cell is a next state, an ignored trigger with a reason, or an error with the
    history."""
    for table, state, trigger in CELLS:
        cell = table.cells[state, trigger]
        match cell:
            case Next():
                assert table.fire(state, trigger) is cell.state
                assert cell.state in table.states
            case Ignore():
                assert table.fire(state, trigger) is None
                assert cell.why
            case Illegal():
                story = ["it was created", "it was seen"]
                with pytest.raises(IllegalTransition) as raised:
                    table.fire(state, trigger, story)
                assert cell.why
                for part in (table.name, state, str(trigger), cell.why, *story):
                    assert part in str(raised.value)


def test_final_states_have_no_successor_and_are_always_reachable() -> None:
    """spec/lifecycle#states: a finished job never changes its state."""
    for table in TABLES:
        ends = {state for state in table.states if not successors(table, state)}
        assert ends == ENDS[table.name]
        for state in table.states if ends else ():
            assert reachable(table, state) & ends, f"{table.name}: no end after {state}"


def test_cancel_is_accepted_in_every_unfinished_state() -> None:
    """spec/lifecycle#cancel: a cancel works in every unfinished state, and is idempotent."""
    for state in JobState:
        cell = transition.JOB.cells[state, JobTrigger.CANCEL_ACCEPTED]
        over = state.is_final or state is JobState.CANCELLING
        assert isinstance(cell, Ignore if over else Next), state


def test_cancelling_job_can_only_reach_final_states() -> None:
    """spec/lifecycle#cancel: an accepted cancel is never lost."""
    after = reachable(transition.JOB, JobState.CANCELLING)
    assert after - {JobState.CANCELLING} == ENDS["job"]


def test_replica_restarts_only_after_the_previous_incarnation_has_ended() -> None:
    """spec/invariants#one-incarnation: a replica never has two live incarnations."""
    for state in ReplicaState:
        cell = transition.REPLICA.cells[state, ReplicaTrigger.RESTARTED]
        assert isinstance(cell, Next if state.is_over else Illegal)


def test_incomplete_transition_table_is_rejected() -> None:
    running = {name: cell for name, cell in transition.ROWS["replica"]["RUNNING"].items() if name != "LOST"}
    rows = {**transition.ROWS["replica"], "RUNNING": running}
    with pytest.raises(ValueError, match="the table has no cell for"):
        Table("replica", ReplicaState, ReplicaTrigger, rows)
