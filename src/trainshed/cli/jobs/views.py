"""Jobs, replicas, log lines and timeline entries as `/trainshed/v1` gives them, with types. Pure.

A service that is older than this command leaves out what it does not know; it reads as empty.

Moments are nanoseconds since the epoch, 0 where one has not come.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.cli.text.moments import duration, parse_moment
from trainshed.cli.text.printable import coloured, one_line, plain
from trainshed.cli.tuning_views import TrialView, TuningView
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.names import Api
from trainshed.core.progress.remaining import remaining_text
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1 import jobs as records
from trainshed.wire.trainshed_v1 import timeline
from trainshed.wire.trainshed_v1.capacity import Waiting
from trainshed.wire.trainshed_v1.record import read

_PAGE = re.compile(r"(?<=please check the logs: )https?://\S{1,4000}")
"""Of the public message."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica of a job's current attempt."""

    id: str
    task: str
    state: ReplicaState
    node: str = ""
    incarnation: int = 1
    #: ns since the epoch; 0 = not yet, as of `ended`.
    started: Nanos = 0
    ended: Nanos = 0
    #: How its program ended; "" while it has not.
    how: str = ""
    #: In this attempt, by rule.
    restarts: tuple[tuple[str, int], ...] = ()
    #: Why it was asked to leave its node; "" = it was not.
    leaving: str = ""
    #: How its program began, warm or cold; "" = nobody asked.
    began: str = ""

    @staticmethod
    def of(replica: records.Replica) -> "ReplicaView":
        """One of a job's `replicas`."""
        return ReplicaView(
            id=replica.id,
            task=replica.task,
            state=ReplicaState(replica.state),
            node=replica.node,
            incarnation=replica.incarnation,
            started=parse_moment(replica.start_time),
            ended=parse_moment(replica.exit.end_time) if replica.exit else 0,
            how=how(replica.exit),
            restarts=tuple(replica.restarts.items()),
            leaving=replica.leaving,
            began=replica.began,
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
    def of(waiting: Waiting | None) -> "WaitingView | None":
        """The `waiting` of a description or a pre-flight; None for null."""
        if waiting is None:
            return None
        return WaitingView(
            waiting.reason, waiting.message, waiting.hint, waiting.blockers, waiting.position
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
    def of(failure: records.Failure | None) -> "FailureView | None":
        """The `failure` of a description; None for null."""
        if failure is None:
            return None
        return FailureView(
            failure.rule,
            failure.cause,
            failure.task,
            failure.status,
            failure.reason,
            failure.tail,
        )


@dataclass(frozen=True, slots=True)
class AutopsyView:
    """What is kept of a replica that failed."""

    task: str
    attempt: int
    expires: Nanos

    @staticmethod
    def of(autopsy: records.KeptAutopsy) -> "AutopsyView":
        """One of the `autopsies` of a description."""
        return AutopsyView(autopsy.task, autopsy.attempt, parse_moment(autopsy.expire_time))


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
    created: Nanos
    started: Nanos
    ended: Nanos
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
    #: Opens TensorBoard; "" = there are no event files.
    tensorboard: str = ""
    #: Who submitted it; "" = not known.
    creator: str = ""
    #: Why and when its log was deleted; "" = it was not.
    log_deleted: str = ""
    #: How far it is, in words, and for how long it will still run; "" = not known.
    progress: str = ""
    #: What its program reported of itself, by name.
    metrics: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def parse(answer: Mapping[str, Any]) -> "JobView":
        """Read a summary or a description. Raises ValueError for something else."""
        return JobView.of(read(answer, records.JobDescription))

    @staticmethod
    def of(job: records.JobDescription) -> "JobView":
        """A job from its record, which may hold no more than its summary."""
        return JobView(
            id=job.job_id,
            uid=job.uid,
            api=Api(job.api),
            name=job.name,
            display_name=one_line(job.display_name),
            state=JobState(job.state),
            created=parse_moment(job.create_time),
            started=parse_moment(job.start_time),
            ended=parse_moment(job.end_time),
            error_code=job.error.code if job.error else 0,
            error=_own_links(job.error.message.strip(), job.job_id) if job.error else "",
            attempt=job.attempt or 0,
            rule=job.rule,
            waits=job.waits,
            replicas=tuple(map(ReplicaView.of, job.replicas or ())),
            waiting=WaitingView.of(job.waiting),
            failure=FailureView.of(job.failure),
            retries=tuple((job.retries or {}).items()),
            kind=job.kind,
            parent=job.parent,
            trial=job.trial,
            tuning=TuningView.of(job.tuning) if job.tuning else None,
            trials=tuple(map(TrialView.of, job.trials or ())),
            child=JobView.of(job.child) if job.child else None,
            model=job.pipeline.model if job.pipeline else "",
            autopsies=tuple(map(AutopsyView.of, job.autopsies or ())),
            links=tuple((job.web_access_uris or {}).items()),
            tensorboard=job.tensorboard_uri or "",
            creator=one_line(job.creator),
            log_deleted=one_line(job.log_deleted),
            progress=_progress_of(job),
            metrics=_metrics_of(job),
        )

    @property
    def program(self) -> "JobView":
        """The job that does the work: a pipeline's own, else the job itself."""
        return self.child or self

    def lasted(self, now: Nanos) -> str:
        """How long it ran: from its start to its end, or to `now`; "" while it has not started, and if it
        never did."""
        return duration((self.ended or now) - self.started) if self.started else ""


def _progress_of(job: records.JobDescription) -> str:
    if job.progress:
        return progress_text(job.progress)
    glance = job.glance
    if not glance:
        return ""
    return progress_text(
        records.Progress(
            done=glance.done, text=glance.progress, remaining_seconds=glance.remaining_seconds
        )
    )


def _metrics_of(job: records.JobDescription) -> tuple[tuple[str, str], ...]:
    if not job.progress:
        return ()
    reported = job.progress.metrics.items()
    return tuple((one_line(name), _short(one_line(value))) for name, value in reported)


def _short(value: str) -> str:
    """A number with as many digits as tell something; any other text as it is."""
    try:
        return f"{float(value):.6g}" if "." in value else value
    except ValueError:
        return value


def progress_text(progress: records.Progress) -> str:
    """Such as `45 %, epoch 3 of 10, about 12 min left (± 2 min)`; "" = nothing is known."""
    share = f"{progress.done * 100:.0f} %" if progress.done is not None else ""
    rest = remaining_text(progress.remaining_seconds, progress.margin_seconds)
    text = one_line(progress.text)
    return ", ".join(filter(None, (share, "" if text == share else text, rest)))


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a replica."""

    #: ns since the epoch.
    at: Nanos
    replica: str
    severity: str
    message: str
    #: Of this trial; 0 = of none.
    trial: int = 0
    #: The replica's name for people.
    task: str = ""
    attempt: int = 0

    @staticmethod
    def parse(answer: Mapping[str, Any]) -> "LogLine":
        """Read one line of a log stream. Raises ValueError for something else."""
        return LogLine.of(read(answer, timeline.LogLine))

    @staticmethod
    def of(line: timeline.LogLine) -> "LogLine":
        """One line of a log stream, to be shown."""
        return LogLine(
            parse_moment(line.at),
            plain(line.replica),
            line.severity,
            coloured(line.message),
            line.trial or 0,
            plain(line.task),
            line.attempt,
        )


@dataclass(frozen=True, slots=True)
class TimelineView:
    """One entry of a job's timeline."""

    at: Nanos
    #: A short stable word.
    kind: str
    message: str
    #: Of which it speaks; 0 = not said.
    attempt: int = 0
    #: Of a verdict.
    effect: str = ""
    #: Of which it speaks; "" = not said.
    replica: str = ""

    @staticmethod
    def parse(answer: Mapping[str, Any]) -> "TimelineView":
        """Read one of the `entries`. Raises ValueError for something else."""
        return TimelineView.of(read(answer, timeline.TimelineEntry))

    @staticmethod
    def of(entry: timeline.TimelineEntry) -> "TimelineView":
        """One of a timeline's `entries`."""
        return TimelineView(
            parse_moment(entry.at),
            entry.kind,
            entry.message,
            entry.details.get("attempt", 0),
            entry.details.get("effect", ""),
            str(entry.details.get("replica", "")),
        )


def _own_links(text: str, job_id: str) -> str:
    """A message of the public services, which send people to a page, with our own command."""
    return _PAGE.sub(f"trainshed jobs logs {job_id}", text)


def how(ending: records.ReplicaExit | timeline.IncarnationExit | None) -> str:
    """How a program ended; "" for one that has not."""
    if ending is None:
        return ""
    if ending.out_of_memory:
        return "out of memory"
    if isinstance(ending, timeline.IncarnationExit):
        # Only the timeline knows it; of a job's replicas the next life has begun by then.
        if ending.stalled:
            return "stalled"
        if ending.out_of_disk:
            return "out of disk"
    if ending.stopped and ending.signal is not None:
        return "stopped"
    if ending.signal is not None:
        return f"signal {ending.signal}"
    return f"exit {ending.exit_code}"
