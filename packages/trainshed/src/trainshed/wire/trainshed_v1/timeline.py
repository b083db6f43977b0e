"""Records of a job's history: its timeline, log, drills, and the report on its recovery after drills."""

from collections.abc import Mapping
from typing import Any

from trainshed.wire.trainshed_v1.record import Record


class TimelineEntry(Record, frozen=True):
    """An event in the history of a job."""

    at: str = ""
    #: Kind of the event, in one word.
    kind: str = ""
    message: str = ""
    details: Mapping[str, Any] = {}


class Timeline(Record, frozen=True):
    """The events of a job, in order."""

    name: str = ""
    #: Number of entries that are omitted at the start.
    skipped: int = 0
    entries: tuple[TimelineEntry, ...] = ()


class LogLine(Record, frozen=True):
    """One line of a log."""

    #: Time with nanoseconds.
    at: str = ""
    replica: str = ""
    task: str = ""
    attempt: int = 0
    severity: str = ""
    message: str = ""
    #: Number of the line in its replica's attempt, starting at 0.
    n: int = 0


class PagedLine(LogLine, frozen=True):
    """A line of a log page."""

    #: Position in the order of all lines, for `before` and `after`.
    place: str = ""


class LogPage(Record, frozen=True):
    """A page of a job's log, oldest line first."""

    name: str = ""
    lines: tuple[PagedLine, ...] = ()
    #: Value of `before` for earlier lines; "" = this is the start of the log.
    earlier: str = ""
    #: Value of `after` for later lines, including lines that are not written yet; "" = this is the end of the
    #: log.
    later: str = ""
    #: Whether unfiltered lines remain. If true, continue in the same direction.
    more: bool = False
    #: Whether the job has finished, so that its log is complete.
    over: bool = False
    #: Replicas that may have lines, as values for `replica`.
    tasks: tuple[str, ...] = ()


class DrillOrder(Record, frozen=True):
    """A drill to order."""

    #: A value of `DrillKind`.
    kind: str = ""
    #: "workerpool1-0", "worker 0" or "worker-replica-0"; "" = the primary replica.
    replica: str = ""
    #: A regular expression (RE2). The drill starts after a matching line of that replica; "" = it starts as
    #: soon as the replica runs.
    at_line: str = ""


class Drill(DrillOrder, frozen=True):
    """A drill of a job."""

    #: 0 = not processed yet.
    number: int = 0
    task: str = ""
    #: "ordered" (not yet stored in the job), "armed", "fired" (being injected) or "done".
    state: str = ""
    order_time: str = ""
    fire_time: str = ""
    #: The affected attempt and incarnation; 0 = not fired yet.
    attempt: int = 0
    incarnation: int = 0


class ResumeFinding(Record, frozen=True):
    """The result of one drill."""

    drill: Drill = Drill()
    #: "resumed", "started_over" or "unknown"; "" = not fired yet.
    outcome: str = ""
    why: str = ""
    advice: str = ""
    #: The decision of the failure table, with `rule`, `effect`, `count` and `budget` in `details`; null =
    #: none.
    verdict: TimelineEntry | None = None
    #: Start time of the next incarnation; "" = not started.
    restart_time: str = ""
    #: Seconds from the end of the affected incarnation to that start; null = no such start.
    down_seconds: float | None = None
    #: Seconds from that start to the first output line.
    silent_seconds: float | None = None
    #: Steps in the log: the first one, the last one before the fault, and the first one after the restart;
    #: null = none.
    first_step: int | None = None
    step_before: int | None = None
    step_after: int | None = None
    #: Number of repeated steps; null = unknown.
    lost: int | None = None
    #: Unit of the steps, such as "epoch".
    unit: str = ""
    #: The replica whose log contains the steps; "" = several replicas.
    steps_of: str = ""


class ResumeReport(Record, frozen=True):
    """Whether a job resumed after each of its drills."""

    name: str = ""
    #: PASS (all resumed), FAIL (at least one started over) or UNKNOWN.
    result: str = ""
    #: Drills in the order of their creation.
    drills: tuple[ResumeFinding, ...] = ()
