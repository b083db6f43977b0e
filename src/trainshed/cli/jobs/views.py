"""Jobs, replicas, log lines and timeline entries as `/trainshed/v1` gives them, with types. Pure.

A service that is older than this command leaves out what it does not know; it reads as empty.

Moments are nanoseconds since the epoch, 0 where one has not come.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.cli.text.moments import parse_moment
from trainshed.cli.text.printable import one_line
from trainshed.cli.tuning_views import TrialView, TuningView
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.names import Api


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica of a job's current attempt."""

    id: str
    task: str
    state: ReplicaState
    node: str = ""
    incarnation: int = 1
    #: ns since the epoch; 0 = not yet, as of `ended`.
    started: int = 0
    ended: int = 0
    #: How its program ended; "" while it has not.
    how: str = ""
    #: In this attempt, by rule.
    restarts: tuple[tuple[str, int], ...] = ()
    #: Why it was asked to leave its node; "" = it was not.
    leaving: str = ""

    @staticmethod
    def parse(found: Mapping[str, Any]) -> "ReplicaView":
        """Read one entry of a job's `replicas`."""
        ending: Mapping[str, Any] = found.get("exit") or {}
        return ReplicaView(
            id=found["id"],
            task=found["task"],
            state=ReplicaState(found["state"]),
            node=found["node"],
            incarnation=found["incarnation"],
            started=parse_moment(found["startTime"]),
            ended=parse_moment(ending.get("endTime", "")),
            how=how(ending),
            restarts=_counters(found.get("restarts")),
            leaving=found.get("leaving", ""),
        )


@dataclass(frozen=True, slots=True)
class WaitingView:
    """Why a job is not placed, what would let it start, and who holds what is missing."""

    reason: str
    message: str
    hint: str = ""
    blockers: tuple[str, ...] = ()
    #: In the queue: 1 = next, 0 = none.
    position: int = 0

    @staticmethod
    def parse(found: Mapping[str, Any] | None) -> "WaitingView | None":
        """Read the `waiting` of a description or a pre-flight; None for null."""
        if found is None:
            return None
        return WaitingView(
            found["reason"],
            found["message"],
            found["hint"],
            tuple(found["blockers"]),
            found["position"],
        )


@dataclass(frozen=True, slots=True)
class FailureView:
    """The typed facts beside a job's public error."""

    rule: str
    cause: str
    #: Whose end it was; "" = the whole attempt's.
    task: str
    status: int | None
    reason: str
    #: The last lines of its errors.
    tail: str

    @staticmethod
    def parse(found: Mapping[str, Any] | None) -> "FailureView | None":
        """Read the `failure` of a description; None for null."""
        if found is None:
            return None
        return FailureView(
            found["rule"],
            found["cause"],
            found["task"],
            found["status"],
            found["reason"],
            found["tail"],
        )


@dataclass(frozen=True, slots=True)
class AutopsyView:
    """What is kept of a replica that failed."""

    task: str
    attempt: int
    expires: int

    @staticmethod
    def parse(found: Mapping[str, Any]) -> "AutopsyView":
        """Read one of the `autopsies` of a description."""
        return AutopsyView(found["task"], found["attempt"], parse_moment(found["expireTime"]))


@dataclass(frozen=True, slots=True)
class JobView:
    """A job, from its summary or from its whole description."""

    id: str
    uid: str
    api: Api
    name: str
    display_name: str
    state: JobState
    #: ns since the epoch, as the next two; 0 = not yet.
    created: int
    started: int
    ended: int
    error_code: int = 0
    #: "" = none.
    error: str = ""
    attempt: int = 0
    #: The row of the failure table that decided the end. From here to `retries`: of descriptions only.
    rule: str = ""
    #: Why it is not running yet, as texts.
    waits: tuple[str, ...] = ()
    replicas: tuple[ReplicaView, ...] = ()
    #: The same with what it is made of.
    waiting: WaitingView | None = None
    failure: FailureView | None = None
    #: By rule.
    retries: tuple[tuple[str, int], ...] = ()
    #: "custom", "tuning" or "pipeline".
    kind: str = "custom"
    #: Name of the job that made it; "" = none.
    parent: str = ""
    #: The trial that it evaluates; 0 = none.
    trial: int = 0
    #: Of a tuning job, as `trials`.
    tuning: TuningView | None = None
    trials: tuple[TrialView, ...] = ()
    #: The job of a pipeline, and the model that it left.
    child: "JobView | None" = None
    model: str = ""
    #: What is kept of replicas that failed.
    autopsies: "tuple[AutopsyView, ...]" = ()
    #: To the shells of replicas that run, by task.
    links: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def parse(found: Mapping[str, Any]) -> "JobView":
        """Read a summary or a description. Raises KeyError or ValueError for something else."""
        error: Mapping[str, Any] = found.get("error") or {}
        child: Mapping[str, Any] | None = found.get("child")
        pipeline: Mapping[str, Any] = found.get("pipeline") or {}
        return JobView(
            id=found["jobId"],
            uid=found["uid"],
            api=Api(found["api"]),
            name=found["name"],
            display_name=one_line(found["displayName"]),
            state=JobState(found["state"]),
            created=parse_moment(found["createTime"]),
            started=parse_moment(found["startTime"]),
            ended=parse_moment(found["endTime"]),
            error_code=error.get("code", 0),
            error=error.get("message", "").strip(),
            attempt=found.get("attempt", 0),
            rule=found.get("rule", ""),
            waits=tuple(found.get("waits", ())),
            replicas=tuple(ReplicaView.parse(replica) for replica in found.get("replicas", ())),
            waiting=WaitingView.parse(found.get("waiting")),
            failure=FailureView.parse(found.get("failure")),
            retries=_counters(found.get("retries")),
            kind=found.get("kind", "custom"),
            parent=found.get("parent", ""),
            trial=found.get("trial", 0),
            tuning=TuningView.parse(found.get("tuning")),
            trials=tuple(map(TrialView.parse, found.get("trials", ()))),
            child=JobView.parse(child) if child else None,
            model=pipeline.get("model", ""),
            autopsies=tuple(map(AutopsyView.parse, found.get("autopsies", ()))),
            links=tuple(found.get("webAccessUris", {}).items()),
        )

    @property
    def program(self) -> "JobView":
        """The job that does the work: a pipeline's own, else the job itself."""
        return self.child or self

    def lasted(self, now: int) -> int:
        """From creation to the end, or to `now`."""
        return (self.ended or now) - self.created


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a replica."""

    #: ns since the epoch.
    at: int
    replica: str
    severity: str
    message: str
    #: Of this trial; 0 = of none.
    trial: int = 0
    #: The replica's name for people.
    task: str = ""

    @staticmethod
    def parse(found: Mapping[str, Any]) -> "LogLine":
        """Read one line of a log stream."""
        return LogLine(
            parse_moment(found["at"]),
            found["replica"],
            found["severity"],
            found["message"],
            found.get("trial", 0),
            found.get("task", ""),
        )


@dataclass(frozen=True, slots=True)
class TimelineView:
    """One entry of a job's timeline."""

    at: int
    #: A short stable word.
    kind: str
    message: str
    #: Of which it speaks; 0 = not said.
    attempt: int = 0
    #: Of a verdict.
    effect: str = ""

    @staticmethod
    def parse(found: Mapping[str, Any]) -> "TimelineView":
        """Read one of the `entries`."""
        details: Mapping[str, Any] = found.get("details") or {}
        return TimelineView(
            parse_moment(found["at"]),
            found["kind"],
            found["message"],
            details.get("attempt", 0),
            details.get("effect", ""),
        )


def how(ending: Mapping[str, Any]) -> str:
    """How a program ended, by its `exit`; "" for an empty one."""
    if not ending:
        return ""
    if ending["outOfMemory"]:
        return "out of memory"
    # Only the story knows it; of a job's replicas the next life has begun by then.
    if ending.get("stalled"):
        return "stalled"
    if ending.get("outOfDisk"):
        return "out of disk"
    if ending["signal"] is not None:
        return f"signal {ending['signal']}"
    return f"exit {ending['exitCode']}"


def _counters(found: Mapping[str, int] | None) -> tuple[tuple[str, int], ...]:
    return tuple((found or {}).items())
