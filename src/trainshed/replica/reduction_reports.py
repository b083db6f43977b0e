"""What a reducer's or a worker's program says of its part in a job with reducers (SPEC §7): one small JSON object.

    {"notes": [{"id": "mode", "severity": "INFO", "text": "…"}], "metrics": {"sent_bytes": 1, …}}

The program is not to be trusted: what is too long is cut, what is too much or of another kind is left out. Pure; runs on
Python 3.6.
"""

import json
import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Union

    Metric = Union[int, float, list[Union[int, float]]]

FILE = "reduction.json"
"""In the program's directory `program.HYPERTUNE`."""
LONGEST_TEXT = 500
"""Characters of a note."""

INFO, WARNING, ERROR = "INFO", "WARNING", "ERROR"

_LONGEST_NAME = 64
_MOST_METRICS = 64
_MOST_NOTES = 100
_LONGEST_LIST = 1024
_LIMIT = 1 << 63


class NoReport(Exception):
    """It is no such object."""


class Note:
    """Something that people should know of. `name`: what the program knows it by; one line of text."""

    __slots__ = ("name", "severity", "text")

    def __init__(self, name: str, severity: str, text: str) -> None:
        self.name = name
        self.severity = severity if severity in (INFO, WARNING, ERROR) else INFO
        text = " ".join(text[: 2 * LONGEST_TEXT].split())
        text = "".join([c if c.isprintable() else "\ufffd" for c in text])
        self.text = text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "\u2026"


class Report:
    """`metrics`: finite numbers, or lists of some, by name."""

    __slots__ = ("metrics", "notes")

    def __init__(self, data: bytes) -> None:
        """Raises NoReport."""
        try:
            found = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError):
            raise NoReport from None
        if not isinstance(found, dict):
            raise NoReport
        fields: "dict[str, Any]" = found  # pyright: ignore[reportUnknownVariableType] - JSON
        self.notes = _notes(fields.get("notes"))
        self.metrics = _metrics(fields.get("metrics"))


def _notes(given: "Any") -> "list[Note]":
    found: "list[Note]" = []
    if not isinstance(given, list):
        return found
    ones: "list[Any]" = given  # pyright: ignore[reportUnknownVariableType] - JSON
    for one in ones[:_MOST_NOTES]:
        if isinstance(one, dict):
            fields: "dict[str, Any]" = one  # pyright: ignore[reportUnknownVariableType] - JSON
            name, text = fields.get("id"), fields.get("text")
            if isinstance(name, str) and isinstance(text, str) and name and text.strip():
                found.append(Note(name[:_LONGEST_NAME], str(fields.get("severity")), text))
    return found


def _metrics(given: "Any") -> "dict[str, Metric]":
    found: "dict[str, Metric]" = {}
    if isinstance(given, dict):
        fields: "dict[str, Any]" = given  # pyright: ignore[reportUnknownVariableType] - JSON
        for name, value in fields.items():
            if len(name) <= _LONGEST_NAME and len(found) < _MOST_METRICS and _is_metric(value):
                found[name] = value
    return found


def _is_metric(value: "Any") -> bool:
    if isinstance(value, list):
        values: "list[Any]" = value  # pyright: ignore[reportUnknownVariableType] - JSON
        return len(values) <= _LONGEST_LIST and all(map(_is_number, values))
    return _is_number(value)


def _is_number(value: "Any") -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and abs(value) < _LIMIT
