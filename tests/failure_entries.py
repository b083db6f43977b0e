"""Built-in rows of the failure table as `[[failure_rules]]` entries, for tests that change a row."""

import json
import tomllib
from pathlib import Path
from typing import Any, Final

from trainshed.core.failure import table

_ENTRIES: Final[dict[str, dict[str, Any]]] = {
    entry["name"]: entry
    for entry in tomllib.loads(Path(table.__file__).with_suffix(".toml").read_text())["failure_rules"]
}


def complete_entry(row: str, /, **changes: Any) -> dict[str, Any]:
    """Return the entry of a built-in row with changes, or of a new row. A row without retries or restarts has
    no backoff.
    """
    entry = {"name": row, **_ENTRIES.get(row, {}), **changes}
    for budget, pauses in (("retries", ("back_off",)), ("restarts", ("spacing", "window"))):
        if not entry.get(budget):
            for field in pauses:
                entry.pop(field, None)
    return entry


def toml(row: str, /, **changes: Any) -> str:
    """Return the entry as part of a configuration."""
    return "[[failure_rules]]\n" + "".join(
        f"{field} = {json.dumps(value)}\n" for field, value in complete_entry(row, **changes).items()
    )
