"""The jobs of `/trainshed/v1`, and the lines of their logs, for display. Pure. A field that an older service
does not send is empty. Times are nanoseconds since the epoch; 0 = not reached yet."""

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any

import click
from msgspec import UNSET, UnsetType

from trainshed.cli.text.colours import faint, keep_colours, one_line, plain, replica_colour
from trainshed.cli.text.moments import duration, exact_moment, parse_moment
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api
from trainshed.core.progress import remaining_text
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1 import jobs as records
from trainshed.wire.trainshed_v1.record import read
from trainshed.wire.trainshed_v1.timeline import LogLine as Line

_PAGE = re.compile(r"(?<=please check the logs: )https?://\S{1,4000}")
"""The URL of a page in the message of a public error."""


class JobView(records.JobDescription, frozen=True):
    """A job's description or summary. A summary has only some of the fields; the other fields are empty."""

    api: Api = Api.VERTEX
    state: JobState = JobState.QUEUED
    child: "JobView | UnsetType | None" = UNSET

    @staticmethod
    def parse(answer: Mapping[str, Any]) -> "JobView":
        """Parse a summary or a description. Raises ValueError for other JSON."""
        return read(answer, JobView)

    @property
    def created_at(self) -> Nanos:
        return parse_moment(self.create_time)

    @property
    def started_at(self) -> Nanos:
        return parse_moment(self.start_time)

    @property
    def ended_at(self) -> Nanos:
        return parse_moment(self.end_time)

    @property
    def error_text(self) -> str:
        """The job's public error; "" = no error. In place of the link to a page with the job's log, it
        contains the command `trainshed jobs logs`."""
        message = self.error.message.strip() if self.error else ""
        return _PAGE.sub(f"trainshed jobs logs {self.job_id}", message)

    @property
    def progress_words(self) -> str:
        """The job's progress and remaining time, such as `45 %, epoch 3 of 10, about 12 min left`; "" =
        unknown."""
        progress = self.progress or records.Progress()
        share = f"{progress.done * 100:.0f} %" if progress.done is not None else ""
        rest = remaining_text(progress.remaining_seconds)
        text = one_line(progress.text)
        return ", ".join(filter(None, (share, "" if text == share else text, rest)))

    @property
    def model(self) -> str:
        """The model that a pipeline has registered; "" = no model."""
        return self.pipeline.model if self.pipeline else ""

    @property
    def program(self) -> "JobView":
        """The job that runs the program: the child of a pipeline, otherwise this job."""
        return self.child or self

    def running_time(self, now: Nanos) -> str:
        """Return the job's running time as text: from its start to its end, or to `now`; "" if it has not
        started."""
        return duration((self.ended_at or now) - self.started_at) if self.started_at else ""


def exit_text(ending: records.ReplicaExit | None) -> str:
    """Return how a program ended, as text; "" if it has not ended."""
    if ending is None:
        return ""
    if ending.out_of_memory:
        return "out of memory"
    if ending.stopped and ending.signal is not None:
        return "stopped"
    if ending.signal is not None:
        return f"signal {ending.signal}"
    return f"exit {ending.exit_code}"


class LineTexts:
    """Formats the log lines of one job. Each text begins with the name of the replica."""

    def __init__(self, job: JobView, *, timestamps: bool = False) -> None:
        self._timestamps = timestamps
        self._width = max((len(replica.task) for replica in job.program.replicas or ()), default=0)

    def format(self, lines: Iterable[Line]) -> list[str]:
        """Return the text of each line, with its line end."""
        texts: list[str] = []
        for (task, replica), own in groupby(lines, attrgetter("task", "replica")):
            name = plain(task).ljust(self._width)
            before = f"{click.style(name, fg=replica_colour(replica))}  "
            below = f"\n{' ' * (len(name) + 2)}"
            for line in own:
                message = below.join(keep_colours(line.message).split("\n"))
                at = faint(f"{exact_moment(parse_moment(line.at))}  ") if self._timestamps else ""
                texts.append(f"{at}{before}{message}\n")
        return texts
