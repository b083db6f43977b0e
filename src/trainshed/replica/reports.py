"""A line that a trial's program writes to its metrics file: what it measured, when, after which step (facts §7.4).

As cloudml-hypertune writes it: a JSON object of `timestamp`, `trial`, `global_step`, `checkpoint_path` and the metric,
its value as text. Any number of metrics, and numbers in place of texts, are taken as well. Runs on Python 3.6.
"""

import json
import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE = "output.metrics"
"""In the program's directory `program.HYPERTUNE`."""
SHOWN = 80
"""Of what is wrong, characters that are told."""
LONGEST_TAG = 1000
"""Characters of a metric's name: what is remembered of a trial is bounded with it."""

_NO_METRICS = frozenset(("checkpoint_path", "global_step", "timestamp", "trial"))
_LONGEST_LINE = 64 << 10
_LIMIT = 1 << 63


class NoMetric(Exception):
    """A line that says nothing that could be measured."""


class Report:
    """One line of the program's file. `at`: ns, None = it does not say. `wrong`: what it reported that is no finite
    number, or under a name that is too long, as it wrote it."""

    __slots__ = ("at", "step", "values", "wrong")

    def __init__(self, line: bytes) -> None:
        """Raises NoMetric."""
        try:
            found = json.loads(line.decode("utf-8")) if len(line) <= _LONGEST_LINE else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise NoMetric
        fields: "dict[str, Any]" = found  # pyright: ignore[reportUnknownVariableType] - JSON
        self.step = _whole(fields.get("global_step"))
        at = _finite(fields.get("timestamp"))
        # To the microsecond: seconds since the epoch as a float know no more.
        self.at = round(at * 1e6) * 1000 if at is not None and 0 < at * 1e9 < _LIMIT else None
        self.values: "dict[str, float]" = {}
        self.wrong: "dict[str, str]" = {}
        for tag, given in fields.items():
            if tag not in _NO_METRICS:
                value = _finite(given) if len(tag) <= LONGEST_TAG else None
                if value is None:
                    self.wrong[tag] = json.dumps(given)[:SHOWN]
                else:
                    self.values[tag] = value


def _finite(given: "Any") -> "float | None":
    """A number, or the text of one."""
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        return None
    try:
        value = float(given)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def _whole(given: "Any") -> int:
    """A step; none given is step 0, as in the library. Raises NoMetric."""
    if given is None or given == "":
        return 0
    if isinstance(given, str):
        try:
            given = int(given)
        except ValueError:
            given = _finite(given)
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, int) or not -_LIMIT < given < _LIMIT:
        raise NoMetric
    return given
