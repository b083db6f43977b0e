"""What an operator may make of the failure table: entries of the configuration, at random
(spec/failures#overrides, "overridable")."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from trainshed.core.failure.overrides import table_with
from trainshed.core.lifecycle.transition import FailurePolicy

Entry = Mapping[str, object]

_MENU: dict[str, tuple[Entry, ...]] = {
    "user_code_failed": ({"restarts": 1}, {"retries": 2}, {"restarts": 2, "retries": 1}),
    "out_of_memory": (
        {"retries": 2, "memory_growth": 1.5, "memory_cap": 4.0},
        {"retries": 3, "memory_growth": 2.0, "memory_cap": 3.0},
        {"retries": 1},
    ),
    "transient_exit": ({"enabled": False}, {"retries": 1}, {"restarts": 2}),
    "replica_lost": ({"restarts": 1}, {"restarts": 2, "retries": 0}, {"restarts": 0, "retries": 1}),
    "internal_error": ({"restarts": 2}, {"retries": 0}, {"back_off": [5, 20]}),
    "reducer_lost": ({"restarts": 3, "window": 20}, {"enabled": False}),
    "spot_preempted": ({"retries": 1},),
    "stock_out": ({"retries": 1, "back_off": [5]},),
    "early_stop": (
        {"exit_codes": [2], "primary": False, "action": "done"},
        {"exit_codes": [2], "primary": False, "action": "done", "restarts": 1},
    ),
    "bad_device": (
        {
            "exit_codes": [1],
            "retries": 2,
            "gives_room": True,
            "action": "fail",
            "code": 14,
            "text": "A bad device.",
        },
        {"exit_codes": ["1-5"], "action": "fail", "before": "user_code_failed", "retries": 1},
    ),
    "bus_error": ({"signals": [7, 8], "restarts": 2, "retries": 1, "action": "fail"},),
    "hung": ({"causes": ["stalled"], "action": "fail", "code": 4, "retries": 1},),
    "evicted": ({"causes": ["left", "lost"], "action": "fail", "restarts": 1},),
}  # fmt: skip
"""By row, what may be said of it; those that the table does not have are new ones."""


@dataclass(frozen=True, slots=True)
class House:
    """The rules of one house: entries of `[[failure_rules]]`, and the setting `max_attempts`."""

    entries: tuple[Entry, ...] = ()
    attempts: int = 10

    @property
    def policy(self) -> FailurePolicy:
        """As the service reads it."""
        return FailurePolicy(table_with(self.entries), self.attempts)


def house(seed: object) -> House:
    """Half of all houses have rules of their own."""
    dice = random.Random(f"house {seed}")
    if dice.random() < 0.5:
        return House()
    names = dice.sample(sorted(_MENU), dice.choice((1, 2, 4)))
    entries = tuple({"name": name, **dice.choice(_MENU[name])} for name in names)
    return House(entries, dice.choice((10, 10, 4)))
