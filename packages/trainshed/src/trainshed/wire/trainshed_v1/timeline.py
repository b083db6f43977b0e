"""Records of what happened to a job, and of what its programs wrote."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from trainshed.wire.trainshed_v1.record import Record


class TimelineEntry(Record, frozen=True):
    """Something that happened to a job."""

    at: str = ""
    #: What happened, in one word.
    kind: str = ""
    message: str = ""
    details: Mapping[str, Any] = {}


class Verdict(Record, frozen=True):
    """What the failure table decided."""

    at: str = ""
    rule: str = ""
    effect: str = ""
    cause: str = ""
    #: Which restart or retry of `budget` this one is; 0 if none is counted.
    count: int = 0
    budget: int = 0
    #: The cause in words.
    reason: str = ""
    #: Number of the drill that was the cause; 0 = none.
    drill: int = 0
    message: str = ""


class Timeline(Record, frozen=True):
    """What happened to a job, in order."""

    name: str = ""
    #: Number of entries that were left out at the beginning.
    skipped: int = 0
    entries: tuple[TimelineEntry, ...] = ()


class LogLine(Record, frozen=True):
    """One line of a log."""

    #: With nanoseconds.
    at: str = ""
    replica: str = ""
    task: str = ""
    attempt: int = 0
    severity: str = ""
    message: str = ""
    #: Number of the line in its replica's attempt, from 0 on.
    n: int = 0
    #: Only for lines of trials.
    trial: int | UnsetType = UNSET


class PagedLine(LogLine, frozen=True):
    """A line of a page."""

    #: Its place in the order of all lines, for `before` and `after`.
    place: str = ""


class LogPage(Record, frozen=True):
    """A page of a job's log, oldest line first."""

    name: str = ""
    lines: tuple[PagedLine, ...] = ()
    #: Pass it as `before` for earlier lines; "" = the log begins here.
    earlier: str = ""
    #: Pass it as `after` for later lines, including those not written yet; "" = there are none.
    later: str = ""
    #: Whether there are lines that were not filtered yet: continue in the same direction.
    more: bool = False
    #: Whether the job is over, so that its log will not grow.
    over: bool = False
    #: The replicas that may have lines, as `replica` takes them.
    tasks: tuple[str, ...] = ()
