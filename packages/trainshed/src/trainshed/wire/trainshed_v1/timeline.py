"""Records of a job's history: its timeline, log and drills (injected faults), and the report on whether it
resumed after its drills."""

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
    """The events of a job, oldest first."""

    name: str = ""
    #: Number of omitted entries at the start.
    skipped: int = 0
    entries: tuple[TimelineEntry, ...] = ()


class LogLine(Record, frozen=True):
    """One line of a log."""

    #: Time of the line, with nanoseconds.
    at: str = ""
    replica: str = ""
    task: str = ""
    attempt: int = 0
    severity: str = ""
    message: str = ""
    #: Number of the line among the lines of its replica in its attempt, starting at 0.
    n: int = 0


class PagedLine(LogLine, frozen=True):
    """A line of a log page."""

    #: Position of the line in the order of all lines, for `before` and `after`.
    place: str = ""


class LogPage(Record, frozen=True):
    """A page of a job's log, oldest line first."""

    name: str = ""
    lines: tuple[PagedLine, ...] = ()
    #: Value of `before` for earlier lines; "" = the page contains the start of the log.
    earlier: str = ""
    #: Value of `after` for later lines, including lines that are not written yet; "" = the page contains the
    #: end of the log.
    later: str = ""
    #: Whether the page ended before the filter was applied to all lines. If true, continue in the same
    #: direction.
    more: bool = False
    #: Whether the job has finished, so that its log is complete.
    over: bool = False
    #: Tasks that may have lines in the log, as values for `replica`.
    tasks: tuple[str, ...] = ()


class DrillOrder(Record, frozen=True):
    """A user's order of a drill, a fault in the user's job."""

    #: A value of `DrillKind`.
    kind: str = ""
    #: The replica, as "workerpool1-0", "worker 0" or "worker-replica-0"; "" = the primary replica.
    replica: str = ""
    #: A regular expression (RE2). The drill (fault) starts after the replica has printed a matching line; ""
    #: = the drill starts as soon as the replica runs.
    at_line: str = ""


class Drill(DrillOrder, frozen=True):
    """A drill of a job: a fault that a user orders to test the recovery of the job."""

    #: Number of the drill (injected fault) within its job; 0 = not stored in the job yet.
    number: int = 0
    task: str = ""
    #: "ordered" (not yet stored in the job), "armed", "fired" (being injected) or "done".
    state: str = ""
    order_time: str = ""
    fire_time: str = ""
    #: Attempt and run (incarnation) of the replica that the drill's fault has hit; 0 = not fired yet.
    attempt: int = 0
    incarnation: int = 0


class ResumeFinding(Record, frozen=True):
    """The effect of one drill (injected fault) on the progress of the job."""

    drill: Drill = Drill()
    #: "resumed", "started_over" or "unknown"; "" = the drill (injected fault) has not fired yet.
    outcome: str = ""
    why: str = ""
    advice: str = ""
    #: The timeline entry of the failure table's decision, with `rule`, `effect`, `count` and `budget` in
    #: `details`; null = no decision.
    verdict: TimelineEntry | None = None
    #: Start time of the replica's next run (incarnation) after the drill; "" = not started.
    restart_time: str = ""
    #: Seconds from the end of the run that the drill's fault hit to `restart_time`; null = not restarted.
    down_seconds: float | None = None
    #: Seconds from `restart_time` to the first output line; null = no output line.
    silent_seconds: float | None = None
    #: Steps in the log: the first step, the last step before the fault, and the first step after the restart;
    #: null = not found.
    first_step: int | None = None
    step_before: int | None = None
    step_after: int | None = None
    #: Number of steps that the job repeated; null = unknown.
    lost: int | None = None
    #: Unit of the steps, such as "epoch".
    unit: str = ""
    #: The replica whose log contains the steps; "" = the logs of several replicas.
    steps_of: str = ""


class ResumeReport(Record, frozen=True):
    """Whether a job resumed after each of its drills (injected faults)."""

    name: str = ""
    #: PASS (all resumed), FAIL (at least one started over) or UNKNOWN.
    result: str = ""
    #: Drills (injected faults) in the order of their creation.
    drills: tuple[ResumeFinding, ...] = ()
