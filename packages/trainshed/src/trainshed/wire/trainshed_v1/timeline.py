"""Records of what happened to a job, by entries and by attempts, and of what its programs wrote."""

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


class IncarnationExit(Record, frozen=True):
    """How one incarnation of a replica ended."""

    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    stopped: bool = False
    stalled: bool = False
    out_of_disk: bool = False
    log_lines: int = 0


class Incarnation(Record, frozen=True):
    """One incarnation of a replica."""

    incarnation: int = 1
    node: str = ""
    start_time: str = ""
    end_time: str = ""
    #: Null for one that runs or was lost.
    exit: IncarnationExit | None = None
    #: How it was lost, in words; "" = it was not.
    lost: str = ""
    #: Why it was asked to leave its node; "" = it was not.
    leaving: str = ""
    verdict: Verdict | None = None


class ReplicaHistory(Record, frozen=True):
    """The incarnations of one replica in an attempt, in their order."""

    id: str = ""
    task: str = ""
    incarnations: tuple[Incarnation, ...] = ()


class Attempt(Record, frozen=True):
    """One attempt. Number 0 exists only if something was decided before the first one had capacity."""

    attempt: int = 0
    start_time: str = ""
    end_time: str = ""
    #: Why it ended; "" while it has not.
    rule: str = ""
    #: Verdicts about the attempt as a whole.
    verdicts: tuple[Verdict, ...] = ()
    replicas: tuple[ReplicaHistory, ...] = ()


class Timeline(Record, frozen=True):
    """What happened to a job, in order, and the same by attempts."""

    name: str = ""
    #: Number of entries that were left out at the beginning.
    skipped: int = 0
    entries: tuple[TimelineEntry, ...] = ()
    #: Made from all entries, including those left out. Only jobs with replicas of their own have attempts.
    attempts: tuple[Attempt, ...] = ()


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
    #: Why and when the log was deleted, in words; "" = it was not.
    deleted: str = ""
