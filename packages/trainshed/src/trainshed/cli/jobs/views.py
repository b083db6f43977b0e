"""The jobs of `/trainshed/v1` for display. Pure.

A service that is older than this command leaves out fields that it does not know; they read as empty.

Times are nanoseconds since the epoch; 0 = not yet.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.cli.text.colours import one_line
from trainshed.cli.text.moments import duration, parse_moment
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api
from trainshed.core.progress import remaining_text
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1 import jobs as records
from trainshed.wire.trainshed_v1.capacity import Waiting
from trainshed.wire.trainshed_v1.record import read

_PAGE = re.compile(r"(?<=please check the logs: )https?://\S{1,4000}")
"""The address of a page, in the message of a public error."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job, from its summary or from its whole description."""

    id: str
    uid: str
    api: Api
    name: str
    display_name: str
    state: JobState
    created: Nanos
    started: Nanos
    ended: Nanos
    error_code: int = 0
    #: Its public error; "" = none.
    error: str = ""
    attempt: int = 0
    #: The row of the failure table that decided the end. From here to `retries`: only in descriptions.
    rule: str = ""
    #: What it runs in instead of what it asks for, as texts.
    substitutions: tuple[str, ...] = ()
    #: Why it does not run yet, as texts.
    waits: tuple[str, ...] = ()
    replicas: tuple[records.Replica, ...] = ()
    #: Why it has no capacity; None = it does not wait for capacity.
    waiting: Waiting | None = None
    failure: records.Failure | None = None
    #: Its retries: (rule of the failure table, count).
    retries: tuple[tuple[str, int], ...] = ()
    #: "custom", "tuning" or "pipeline".
    kind: str = "custom"
    #: Name of the job that created it; "" = none.
    parent: str = ""
    #: The trial that it evaluates; 0 = none.
    trial: int = 0
    #: Only of a tuning job, as is the next.
    tuning: records.Tuning | None = None
    trials: tuple[records.Trial, ...] = ()
    #: The job that a pipeline runs; None = none, or not a pipeline.
    child: "JobView | None" = None
    #: The model that a pipeline registered; "" = none.
    model: str = ""
    #: The autopsies of failed replicas.
    autopsies: tuple[records.KeptAutopsy, ...] = ()
    #: Links to shells in running replicas: (task, address).
    links: tuple[tuple[str, str], ...] = ()
    #: Address that opens TensorBoard; "" = there are no event files.
    tensorboard: str = ""
    #: Who submitted it; "" = not known.
    creator: str = ""
    #: The address of whoever is responsible for it; "" = not known.
    user: str = ""
    #: Why and when its log was deleted; "" = it was not.
    log_deleted: str = ""
    #: How far it is, and how long it will still run, as text; "" = not known.
    progress: str = ""

    @staticmethod
    def parse(answer: Mapping[str, Any]) -> "JobView":
        """Read a summary or a description. Raises ValueError for something else."""
        return JobView.of(read(answer, records.JobDescription))

    @staticmethod
    def of(job: records.JobDescription) -> "JobView":
        """Return the view of a job's record, which may have the fields of a summary only."""
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
            substitutions=tuple(map(one_line, job.substitutions)),
            waits=job.waits,
            replicas=tuple(job.replicas or ()),
            waiting=job.waiting or None,
            failure=job.failure or None,
            retries=tuple((job.retries or {}).items()),
            kind=job.kind,
            parent=job.parent,
            trial=job.trial,
            tuning=job.tuning or None,
            trials=tuple(job.trials or ()),
            child=JobView.of(job.child) if job.child else None,
            model=job.pipeline.model if job.pipeline else "",
            autopsies=tuple(job.autopsies or ()),
            links=tuple((job.web_access_uris or {}).items()),
            tensorboard=job.tensorboard_uri or "",
            creator=one_line(job.creator),
            user=one_line(job.user),
            log_deleted=one_line(job.log_deleted),
            progress=_progress_of(job),
        )

    @property
    def program(self) -> "JobView":
        """The job that does the work: the one that a pipeline runs, else the job itself."""
        return self.child or self

    def lasted(self, now: Nanos) -> str:
        """Return how long it ran, as text: from its start to its end, or to `now`; "" if it has not
        started."""
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


def progress_text(progress: records.Progress) -> str:
    """Return progress as text, such as `45 %, epoch 3 of 10, about 12 min left`; "" = not known."""
    share = f"{progress.done * 100:.0f} %" if progress.done is not None else ""
    rest = remaining_text(progress.remaining_seconds)
    text = one_line(progress.text)
    return ", ".join(filter(None, (share, "" if text == share else text, rest)))


def _own_links(text: str, job_id: str) -> str:
    """Return a message in the words of the public services, whose link to a page of logs is replaced by our
    own command."""
    return _PAGE.sub(f"trainshed jobs logs {job_id}", text)


def how(ending: records.ReplicaExit | None) -> str:
    """Return how a program ended, as text; "" if it has not."""
    if ending is None:
        return ""
    if ending.out_of_memory:
        return "out of memory"
    if ending.stopped and ending.signal is not None:
        return "stopped"
    if ending.signal is not None:
        return f"signal {ending.signal}"
    return f"exit {ending.exit_code}"
