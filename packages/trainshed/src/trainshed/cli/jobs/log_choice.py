"""Chooses which lines of a log are shown, by time, severity, text and attempt, and which entries of the job's
timeline stand between them. Pure."""

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

import click

from trainshed.cli.jobs.views import TimelineView
from trainshed.cli.text.moments import parse_moment, rfc3339
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.timeline import LogLine as Line

SEVERITIES = (
    "DEFAULT",
    "DEBUG",
    "INFO",
    "NOTICE",
    "WARNING",
    "ERROR",
    "CRITICAL",
    "ALERT",
    "EMERGENCY",
)
"""The public names of severities, ascending."""

_AGO = re.compile(r"(\d{1,9})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SAID_IN_THE_LOG = frozenset({"notice", "warning", "building", "created", "log_deleted"})
"""Kinds of entries that are left out because they tell nothing new; most stand in the log as well."""
_PASSED_OVER = frozenset({"waiting", "delayed", "admitted", "preparing", "launching", "running"})
"""Kinds of entries that lead to a start; only the start itself is shown."""


@dataclass(frozen=True, slots=True)
class LogChoice:
    """What of a job's log is shown. A field that is not set leaves nothing out."""

    #: Times in ns since the epoch; 0 = not set. The service chooses lines by `since`.
    since: Nanos = 0
    until: Nanos = 0
    #: The lowest severity; "" = any.
    severity: str = ""
    #: Only lines that it matches; None = not set.
    pattern: re.Pattern[str] | None = None
    #: Only this attempt; 0 = not set.
    attempt: int = 0
    #: Only this replica; "" = not set. The service chooses lines by it.
    replica: str = ""
    #: Whether entries of the timeline stand between the lines.
    events: bool = True

    @property
    def chooses_lines(self) -> bool:
        """Whether `wants` leaves out any lines, beyond those that the service leaves out itself."""
        return bool(self.until or self.severity or self.pattern or self.attempt)

    @property
    def counts_tail(self) -> bool:
        """Whether the last N lines have to be counted here: the service counts them among all lines."""
        return self.chooses_lines or bool(self.since)

    def wants(self, line: Line) -> bool:
        """Whether a line is shown."""
        return (
            (not self.until or parse_moment(line.at) < self.until)
            and (not self.severity or _rank(line.severity) >= _rank(self.severity))
            and (self.pattern is None or self.pattern.search(line.message) is not None)
            and (not self.attempt or line.attempt == self.attempt)
        )

    def wants_event(self, entry: TimelineView) -> bool:
        """Whether an entry of the timeline is shown between the lines."""
        if not self.events or self.severity or self.pattern:
            return False
        if entry.kind in _SAID_IN_THE_LOG or entry.kind in _PASSED_OVER:
            return False
        return (
            (not self.replica or entry.replica == self.replica)
            and (not self.attempt or entry.attempt in (0, self.attempt))
            and entry.at >= self.since
            and (not self.until or entry.at < self.until)
        )

    def between(self, entries: Iterable[TimelineView], *, tail: bool) -> "Between":
        """Return the entries that are shown between lines. `tail`: leave out those before the first line."""
        return Between(filter(self.wants_event, entries), tail=tail)


class Between:
    """Entries of a timeline, which are taken out in order as the lines around them are printed."""

    def __init__(self, entries: Iterable[TimelineView], *, tail: bool) -> None:
        ordered = sorted(entries, key=lambda entry: entry.at)
        # Times in this form can be compared as texts, so the times of lines need not be parsed.
        self._left = deque((rfc3339(entry.at), entry) for entry in ordered)
        self._leaves_out = tail

    def split(
        self, lines: Sequence[Line]
    ) -> Iterator[tuple[Sequence[TimelineView], Sequence[Line]]]:
        """Yield (entries, lines): entries, and the lines that follow them."""
        start = 0
        while start < len(lines):
            due = self._before(lines[start].at)
            end = len(lines)
            if self._left:
                end = bisect_right(lines, self._left[0][0], lo=start, key=_at)
            yield () if self._leaves_out else due, lines[start:end]
            self._leaves_out = False
            start = end

    def rest(self) -> Sequence[TimelineView]:
        """Return the entries after the last line."""
        return () if self._leaves_out else [entry for _, entry in self._left]

    def _before(self, at: str) -> list[TimelineView]:
        due: list[TimelineView] = []
        while self._left and self._left[0][0] < at:
            due.append(self._left.popleft()[1])
        return due


def _at(line: Line) -> str:
    return line.at


def moment(text: str, now: Nanos, option: str, zone: tzinfo | None = None) -> int:
    """Convert `10m` or `2h` (ago), or a date and time, to nanoseconds since the epoch; "" = 0. A date and
    time without a zone is in `zone`, None = this machine's. Raises click.UsageError."""
    if not text:
        return 0
    if match := _AGO.fullmatch(text):
        return now - int(match[1]) * _UNITS[match[2]] * 10**9
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"{option}: write how long ago (30s, 10m, 2h, 1d) or a moment (2026-11-20T06:05, with Z for"
            f" UTC), not {text!r}."
        ) from None
    # `astimezone` takes a time without a zone for one of this machine's zone.
    at = at.replace(tzinfo=zone) if at.tzinfo is None and zone else at.astimezone()
    return round(at.timestamp() * 10**6) * 1000


def pattern(text: str) -> re.Pattern[str] | None:
    """Compile the user's regular expression; None for "". Raises click.UsageError."""
    if not text:
        return None
    try:
        return re.compile(text)
    except re.error as fault:
        raise click.UsageError(f"--grep: {text!r} is no regular expression: {fault}.") from None


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else 0
