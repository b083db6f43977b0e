"""The transition tables: for every (state, trigger) the next state, why nothing happens, or why the trigger
cannot come. Their cells are in `tables.toml`.

A table is total: building one that leaves a cell out raises ValueError. Diagrams in docs/lifecycle.md are
made from these tables; tests/unit/test_lifecycle_tables.py walks every cell.
"""

import enum
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

from msgspec import Struct

from trainshed.core.lifecycle.states import (
    AttemptState,
    AttemptTrigger,
    JobState,
    JobTrigger,
    ReplicaState,
    ReplicaTrigger,
)

State = TypeVar("State", bound=enum.StrEnum)
Trigger = TypeVar("Trigger", bound=enum.StrEnum)


class IllegalTransition(Exception):
    """A trigger came in a state in which it can never come: a bug of ours. The message tells what happened
    before."""


class Next(Struct, Generic[State], frozen=True):
    """The trigger leads to `state` (which may be the same)."""

    state: State


class Ignore(Struct, frozen=True):
    """Nothing happens, for the reason `why`."""

    why: str


class Illegal(Struct, frozen=True):
    """The trigger can never come in this state, for the reason `why`."""

    why: str


class Table(Generic[State, Trigger]):
    """All cells of one state machine. `rows`: for each state the cells by trigger, as in `tables.toml`."""

    def __init__(
        self,
        name: str,
        states: type[State],
        triggers: type[Trigger],
        rows: Mapping[str, Mapping[str, str]],
    ) -> None:
        self.name = name
        self.states = tuple(states)
        self.triggers = tuple(triggers)
        by_state = {state: row for names, row in rows.items() for state in names.split(", ")}
        self.cells: dict[tuple[State, Trigger], Next[State] | Ignore | Illegal] = {}
        for state in states:
            row = by_state.get(state.name, {})
            for trigger in triggers:
                text = row.get("*") or row.get(trigger.name)
                if text is None:
                    raise ValueError(f"{name}: nothing is said of {trigger!r} in {state}")
                self.cells[state, trigger] = _cell(states, text)

    def fire(self, state: State, trigger: Trigger, timeline: Iterable[str] = ()) -> State | None:
        """Return the next state; None if the trigger is ignored. Raise IllegalTransition, with the lines of
        `timeline` in its message, if the trigger can never come here."""
        cell = self.cells[state, trigger]
        if isinstance(cell, Illegal):
            story = "".join(f"\n  {line}" for line in timeline)
            raise IllegalTransition(
                f"{self.name} in state {state}: {trigger!r} can never come here: {cell.why}. "
                f"What happened until then:{story or ' nothing'}"
            )
        return cell.state if isinstance(cell, Next) else None


def _cell(states: type[State], text: str) -> Next[State] | Ignore | Illegal:
    word, _, why = text.partition(": ")
    match word:
        case "ignored":
            return Ignore(why)
        case "never":
            return Illegal(why)
        case _:
            return Next(states[word])


ROWS: Final[Mapping[str, Mapping[str, Mapping[str, str]]]] = tomllib.loads(
    Path(__file__).with_name("tables.toml").read_text("utf-8")
)
"""The rows of `tables.toml`, by table and state."""

JOB: Final = Table("job", JobState, JobTrigger, ROWS["job"])
ATTEMPT: Final = Table("attempt", AttemptState, AttemptTrigger, ROWS["attempt"])
REPLICA: Final = Table("replica", ReplicaState, ReplicaTrigger, ROWS["replica"])
