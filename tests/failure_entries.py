"""Built-in rows of the failure table as entries of `[[failure_rules]]`, for tests that change one."""

import json
from collections.abc import Mapping
from typing import Any

from trainshed.core.failure.messages import Message
from trainshed.core.failure.table import RULES

_SECOND = 10**9
_PLAIN = ("restarts", "retries", "code", "text", "memory_growth", "memory_cap")


def whole(row: str, /, **changes: Any) -> dict[str, Any]:
    """The entry of a built-in row with changes, or of a new row. A row without retries or restarts has no
    pauses."""
    entry = {"name": row, **_entry(row), **changes}
    for budget, pauses in (("retries", ("back_off",)), ("restarts", ("spacing", "window"))):
        if not entry.get(budget):
            for field in pauses:
                entry.pop(field, None)
    return entry


def toml(row: str, /, **changes: Any) -> str:
    """The same, as part of a configuration."""
    return "[[failure_rules]]\n" + "".join(
        f"{field} = {json.dumps(value)}\n" for field, value in whole(row, **changes).items()
    )


def _entry(name: str) -> Mapping[str, Any]:
    rule = next((rule for rule in RULES if rule.name == name), None)
    if rule is None:
        return {}
    match = rule.match
    fields = {
        "causes": sorted(match.causes),
        "exit_codes": sorted(match.exit_codes),
        "signals": sorted(match.signals),
        "primary": match.primary,
        "reducer": match.reducer,
        "action": rule.action.value,
        "message": "" if rule.message is Message.NONE else rule.message.value,
        **{field: getattr(rule, field) for field in _PLAIN},
        "window": rule.window / _SECOND,
        "spacing": [pause / _SECOND for pause in rule.spacing],
        "back_off": [pause / _SECOND for pause in rule.back_off],
        "gives_room": rule.gives_room,
        "unstoppable": rule.unstoppable,
    }
    # Zero, nothing and false are what a row has that does not say.
    return {field: value for field, value in fields.items() if value}
