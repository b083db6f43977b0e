"""The three transition tables: total, walked cell by cell, every state reachable, no way out of an end."""

import enum
from collections.abc import Iterator
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

FIRST: list[tuple[AnyTable, enum.StrEnum]] = [
    (transition.JOB, JobState.QUEUED),
    (transition.ATTEMPT, AttemptState.WAITING),
    (transition.REPLICA, ReplicaState.WAITING),
]
"""Each with the state that it begins in."""
TABLES = [table for table, _ in FIRST]
ENDS: dict[str, set[enum.StrEnum]] = {
    "job": {s for s in JobState if s.is_final},
    "attempt": {AttemptState.OVER},
    "replica": set(),  # a replica has no end of its own: it ends with its attempt
}
CANCELS: list[tuple[AnyTable, enum.StrEnum]] = [(transition.JOB, JobTrigger.CANCEL_ACCEPTED)]
CELLS = [(table, state, trigger) for table in TABLES for state, trigger in table.cells]


def successors(table: AnyTable, state: enum.StrEnum) -> set[enum.StrEnum]:
    cells: Iterator[Next[Any]] = (
        cell
        for (before, _), cell in table.cells.items()
        if before is state and isinstance(cell, Next)
    )
    return {cell.state for cell in cells}


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


def test_every_state_can_be_reached() -> None:
    for table, first in FIRST:
        assert reachable(table, first) == set(table.states)


def test_nothing_leads_out_of_an_end_and_every_state_leads_to_one() -> None:
    """spec/lifecycle#states: what is over stays as it is."""
    for table in TABLES:
        ends = {state for state in table.states if not successors(table, state)}
        assert ends == ENDS[table.name]
        for state in table.states if ends else ():
            assert reachable(table, state) & ends, f"{table.name}: no end after {state}"


def test_a_cancel_is_accepted_in_every_state_before_the_end() -> None:
    """spec/lifecycle#cancel: cancel works in every state before the end, and is idempotent."""
    for table, trigger in CANCELS:
        for state in table.states:
            cell = table.cells[state, trigger]
            over = state in ENDS[table.name] or state.value == "CANCELLING"
            assert isinstance(cell, Ignore if over else Next), (table.name, state)


def test_a_cancelling_job_never_goes_back_to_work() -> None:
    """spec/lifecycle#cancel: never lost."""
    for table, _ in CANCELS:
        cancelling = next(s for s in table.states if s.value == "CANCELLING")
        assert reachable(table, cancelling) - {cancelling} == ENDS[table.name]


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
    with pytest.raises(ValueError, match="nothing is said of"):
        Table("replica", ReplicaState, ReplicaTrigger, rows)
