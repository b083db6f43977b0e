"""What a transition table is: for every (state, trigger) the next state, or why nothing happens, or why never.

A table is total: building one that leaves a cell out, or names one twice, fails. The tables are in `tables`.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State", bound=enum.StrEnum)
Trigger = TypeVar("Trigger", bound=enum.StrEnum)


class IllegalTransition(Exception):
    """A trigger came in a state in which it can never come: an error of ours. The message tells the whole story."""


@dataclass(frozen=True, slots=True)
class Next(Generic[State]):
    """The trigger leads to `state` (which may be the same)."""

    state: State


@dataclass(frozen=True, slots=True)
class Ignore:
    """Nothing happens, because of `why`."""

    why: str


@dataclass(frozen=True, slots=True)
class Illegal:
    """It cannot come to this: `why`."""

    why: str


class Table(Generic[State, Trigger]):
    """All cells of one thing's life. `rows`: by state, one cell per trigger, written in the order of `triggers`."""

    def __init__(
        self,
        name: str,
        states: type[State],
        triggers: type[Trigger],
        rows: Mapping[State, Mapping[Trigger, "State | Ignore | Illegal"]],
    ) -> None:
        self.name = name
        self.states = tuple(states)
        self.triggers = tuple(triggers)
        self.cells: dict[tuple[State, Trigger], Next[State] | Ignore | Illegal] = {}
        for state in states:
            for trigger in triggers:
                if trigger not in rows.get(state, {}):
                    raise ValueError(f"{name}: nothing is said of {trigger!r} in {state}")
                cell = rows[state][trigger]
                self.cells[state, trigger] = (
                    cell if isinstance(cell, Ignore | Illegal) else Next(cell)
                )

    def fire(self, state: State, trigger: Trigger, story: Iterable[str] = ()) -> State | None:
        """The next state; None if nothing happens. Raises IllegalTransition, telling `story`."""
        cell = self.cells[state, trigger]
        if isinstance(cell, Illegal):
            told = "".join(f"\n  {line}" for line in story)
            raise IllegalTransition(
                f"{self.name} in state {state}: {trigger!r} can never come here: {cell.why}. "
                f"What happened until then:{told or ' nothing'}"
            )
        return cell.state if isinstance(cell, Next) else None
