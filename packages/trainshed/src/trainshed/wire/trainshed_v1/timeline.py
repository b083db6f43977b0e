"""Records of what happened to a job: its timeline, its log, its drills and the report on how it resumed after
them."""

from collections.abc import Mapping
from typing import Any

from trainshed.wire.trainshed_v1.record import Record


class TimelineEntry(Record, frozen=True):
    """Something that happened to a job."""

    at: str = ""
    #: What happened, in one word.
    kind: str = ""
    message: str = ""
    details: Mapping[str, Any] = {}


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


class DrillOrder(Record, frozen=True):
    """A drill to be ordered."""

    #: A word of `DrillKind`.
    kind: str = ""
    #: "workerpool1-0", "worker 0" or "worker-replica-0"; "" = the primary.
    replica: str = ""
    #: The drill waits for a line of that replica that matches this regular expression (RE2); "" = it comes as
    #: soon as the replica runs.
    at_line: str = ""


class Drill(DrillOrder, frozen=True):
    """A drill of a job."""

    #: 0 = not taken up yet.
    number: int = 0
    task: str = ""
    #: "ordered" (not yet written into the job), "armed", "fired" (being injected) or "done".
    state: str = ""
    order_time: str = ""
    fire_time: str = ""
    #: The attempt and incarnation that it hit; 0 before.
    attempt: int = 0
    incarnation: int = 0


class ResumeFinding(Record, frozen=True):
    """The result of one drill."""

    drill: Drill = Drill()
    #: "resumed", "started_over", "unknown"; "" = it has not fired.
    outcome: str = ""
    why: str = ""
    advice: str = ""
    #: What the failure table decided: `details` has `rule`, `effect`, `count` and `budget`; null if nothing.
    verdict: TimelineEntry | None = None
    #: When the next incarnation started; "" = it has not.
    restart_time: str = ""
    #: From the end of what was hit to that start; null if there is none.
    down_seconds: float | None = None
    #: From that start to its first line.
    silent_seconds: float | None = None
    #: The steps that lines of the log mention, if any do: the first one ever, the last one before the fault,
    #: the first one after the restart.
    first_step: int | None = None
    step_before: int | None = None
    step_after: int | None = None
    #: Number of steps that were repeated; null if not known.
    lost: int | None = None
    #: The unit of all these, such as "epoch".
    unit: str = ""
    #: The replica whose log mentions them; "" = several replicas'.
    steps_of: str = ""


class ResumeReport(Record, frozen=True):
    """Whether a job resumed where it was after its drills."""

    name: str = ""
    #: PASS (all resumed), FAIL (one started over) or UNKNOWN.
    result: str = ""
    #: In the order in which they were ordered.
    drills: tuple[ResumeFinding, ...] = ()
