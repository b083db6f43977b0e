"""Random failure table entries of an operator (spec/failures#overrides, "overridable")."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.failure_entries import complete_entry
from trainshed.core.failure.table import table_with
from trainshed.core.lifecycle.transition import FailurePolicy

Entry = Mapping[str, Any]

_FAILS: Entry = {"action": "fail", "code": 3, "message": "user_code"}
_MENU: dict[str, tuple[Entry, ...]] = {
    "user_code_failed": ({"restarts": 1}, {"retries": 2}, {"restarts": 2, "retries": 1}),
    "out_of_memory": (
        {"retries": 2, "memory_growth": 1.5, "memory_cap": 4.0},
        {"retries": 3, "memory_growth": 2.0, "memory_cap": 3.0},
        {"retries": 1},
    ),
    "transient_exit": ({"retries": 0}, {"retries": 1}, {"restarts": 2}),
    "replica_lost": ({"restarts": 1}, {"restarts": 2, "retries": 0}, {"restarts": 0, "retries": 1}),
    "internal_error": ({"restarts": 2}, {"retries": 0}, {"back_off": [5, 20]}),
    "reducer_lost": ({"restarts": 3, "window": 20},),
    "preempted": ({"retries": 1},),
    "stock_out": ({"retries": 1, "back_off": [5]},),
    "early_stop": (
        {"causes": ["exited"], "exit_codes": [2], "primary": False, "action": "done"},
        {"causes": ["exited"], "exit_codes": [2], "primary": False, "action": "done", "restarts": 1},
    ),
    "bad_device": (
        {
            "causes": ["exited"],
            "exit_codes": [1],
            "retries": 2,
            "gives_room": True,
            "action": "fail",
            "code": 14,
            "text": "A bad device.",
        },
        {
            "causes": ["exited"],
            "exit_codes": ["1-5"],
            **_FAILS,
            "before": "user_code_failed",
            "retries": 1,
        },
    ),
    "bus_error": ({"causes": ["signalled"], "signals": [7, 8], "restarts": 2, "retries": 1, **_FAILS},),
    "hung": ({"causes": ["stalled"], **_FAILS, "code": 4, "retries": 1},),
    "evicted": ({"causes": ["left", "lost"], **_FAILS, "message": "lost", "restarts": 1},),
}  # fmt: skip
"""Possible entries by row. Rows that are not in the table are new."""


@dataclass(frozen=True, slots=True)
class OperatorRules:
    """An operator's rules: changes of built-in rows, new rows, and the setting `max_attempts`."""

    entries: tuple[Entry, ...] = ()
    attempts: int = 10

    @property
    def policy(self) -> FailurePolicy:
        """The rules in the service's format."""
        return FailurePolicy(
            table_with([complete_entry(str(entry["name"]), **entry) for entry in self.entries]), self.attempts
        )


def draw_operator_rules(seed: object) -> OperatorRules:
    """Draw the operator's rules of a scenario. Half of all scenarios have none."""
    dice = random.Random(f"house {seed}")
    if dice.random() < 0.5:
        return OperatorRules()
    names = dice.sample(sorted(_MENU), dice.choice((1, 2, 4)))
    entries = tuple({"name": name, **dice.choice(_MENU[name])} for name in names)
    return OperatorRules(entries, dice.choice((10, 10, 4)))
