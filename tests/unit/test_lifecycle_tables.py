"""The three transition tables: total, each cell, no way out of an end. `test_lifecycle_walk` reaches all."""

import enum
from typing import Any

import pytest

from trainshed.core.lifecycle import transition
from trainshed.core.lifecycle.states import (
    AttemptState,
    JobState,
    JobTrigger,
    ReplicaState,
    ReplicaTrigger,
)
from trainshed.core.lifecycle.transition import Ignore, Illegal, IllegalTransition, Next, Table

AnyTable = Table[Any, Any]

TABLES: list[AnyTable] = [transition.JOB, transition.ATTEMPT, transition.REPLICA]
ENDS: dict[str, set[enum.StrEnum]] = {
    "job": {s for s in JobState if s.is_final},
    "attempt": {AttemptState.OVER},
    "replica": set(),  # a replica has no end of its own: it ends with its attempt
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


def test_every_cell_does_what_it_says() -> None:
    """spec/lifecycle#states: a next state, or nothing with a reason, or an error with the whole story."""
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


def test_nothing_leads_out_of_an_end_and_every_state_leads_to_one() -> None:
    """spec/lifecycle#states: what is over stays as it is."""
    for table in TABLES:
        ends = {state for state in table.states if not successors(table, state)}
        assert ends == ENDS[table.name]
        for state in table.states if ends else ():
            assert reachable(table, state) & ends, f"{table.name}: no end after {state}"


def test_a_cancel_is_accepted_in_every_state_before_the_end() -> None:
    """spec/lifecycle#cancel: cancel works in every state before the end, and is idempotent."""
    for state in JobState:
        cell = transition.JOB.cells[state, JobTrigger.CANCEL_ACCEPTED]
        over = state.is_final or state is JobState.CANCELLING
        assert isinstance(cell, Ignore if over else Next), state


def test_a_cancelling_job_never_goes_back_to_work() -> None:
    """spec/lifecycle#cancel: never lost."""
    after = reachable(transition.JOB, JobState.CANCELLING)
    assert after - {JobState.CANCELLING} == ENDS["job"]


def test_a_replica_has_another_incarnation_only_after_the_end_of_the_last() -> None:
    """spec/invariants#one-incarnation: never two live incarnations of one replica."""
    for state in ReplicaState:
        cell = transition.REPLICA.cells[state, ReplicaTrigger.RESTARTED]
        assert isinstance(cell, Next if state.is_over else Illegal)


def test_a_table_with_a_gap_cannot_be_made() -> None:
    running = {
        name: cell for name, cell in transition.ROWS["replica"]["RUNNING"].items() if name != "LOST"
    }
    rows = {**transition.ROWS["replica"], "RUNNING": running}
    with pytest.raises(ValueError, match="the table has no cell for"):
        Table("replica", ReplicaState, ReplicaTrigger, rows)
