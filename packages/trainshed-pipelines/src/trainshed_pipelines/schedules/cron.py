"""Cron expressions with time zones (facts/pipelines#schedules). Pure.

On days with a clock change, the rules are those of Debian's cron:

- If neither the minute nor the hour starts with `*`, each wall-clock time counts once. A time that the clocks
  skip in spring becomes the first time after the gap. A time that occurs twice in autumn counts the first
  time.
- Otherwise, as with `*/15 * * * *`, every matching moment counts: none within the gap, and both moments of a
  time that occurs twice.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from itertools import takewhile
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from trainshed.core.units import Nanos

_SECOND: Final = 10**9
_HOUR: Final = 3_600 * _SECOND
_MAX_CHARS: Final = 250
_FORM: Final = re.compile(r"\s*(?:(?:CRON_)?TZ=(\S*)\s*)?(.*)", re.DOTALL)
_ADVICE: Final = (
    "Write minute, hour, day of month, month and day of week, after an optional time zone: "
    "'TZ=Europe/Berlin 0 2 * * *'."
)


def runs(cron: str, after: Nanos) -> Iterator[Nanos]:
    """Yield the times (ns) of an expression that are later than `after`, in ascending order. The times end if
    50 years contain none. Raises ValueError for an invalid expression or an unknown time zone."""
    match = _FORM.fullmatch(cron)
    assert match is not None, "every text has this form"
    zone, fields = match.groups()
    if len(fields.split()) != 5 or len(cron) > _MAX_CHARS:
        raise ValueError(f"{cron[:_MAX_CHARS]!r} does not have five fields. {_ADVICE}")
    start = datetime.fromtimestamp(after // _SECOND, UTC if zone is None else _zone(zone))
    try:
        moments = CronSim(fields, start)
    except CronSimError as wrong:
        raise ValueError(f"{cron!r} is not a cron expression ({wrong}). {_ADVICE}") from None
    for moment in moments:
        # CronSim ignores whether `after` is the first or the second of two equal wall-clock times.
        if (time := int(moment.timestamp()) * _SECOND) > after:
            yield time


def next_run(cron: str, after: Nanos) -> Nanos | None:
    """Return the first time later than `after`, or None. Raises ValueError like `runs`."""
    return next(runs(cron, after), None)


def last_run(cron: str, after: Nanos, until: Nanos) -> Nanos | None:
    """Return the last time later than `after` and not later than `until`, or None. Raises ValueError like
    `runs`."""
    times: list[Nanos] = []
    # Most times lie outside of the first windows that contain one.
    for window in (_HOUR, 24 * _HOUR, 750 * _HOUR, until - after):
        start = max(after, until - window)
        times = times or [*takewhile(lambda time: time <= until, runs(cron, start))]
    return times[-1] if times else None


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        text = f"The time zone {name!r} is unknown. Use a name such as Europe/Berlin."
        raise ValueError(text) from None
