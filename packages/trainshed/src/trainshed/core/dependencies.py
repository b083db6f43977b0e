"""Dependencies between jobs: a job can wait until other jobs of its project have finished
(spec/lifecycle#dependencies). Pure.

The label `trainshed-after` of a new job lists these jobs. The record of the job stores the jobs in that list
that have not finished yet.
"""

import enum
import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from trainshed.core.capacity import Waiting, WaitReason
from trainshed.core.errors import format_list
from trainshed.core.names import JobName, JobUid

AFTER_LABEL: Final = "trainshed-after"
_SEPARATOR: Final = "__"
_MAX_NAMES: Final = 5
_match_entry = re.compile(r"([a-z0-9][a-z0-9_-]*?)(?:_(succeeded|finished))?").fullmatch


class Condition(enum.StrEnum):
    """The end of a job that another job waits for."""

    SUCCEEDED = "succeeded"
    #: Any end, including a failure and a cancellation.
    FINISHED = "finished"


class Dependency(Struct, frozen=True):
    """A job, tuning job or pipeline that must finish before another job requests capacity."""

    uid: JobUid
    name: JobName
    condition: Condition = Condition.SUCCEEDED

    def is_met(self, *, succeeded: bool) -> bool:
        """Return whether the end of the job meets the condition. `succeeded`: whether the job has succeeded.
        A deleted job has not."""
        return succeeded or self.condition is Condition.FINISHED


def parse_after(text: str) -> tuple[tuple[str, Condition], ...]:
    """Parse a value of the label `trainshed-after`: `JOB`, `JOB_succeeded` or `JOB_finished`, with `__`
    between several jobs. Return the UID or job ID of each job with its condition, or () for an invalid
    value."""
    entries = [_match_entry(entry) for entry in text.split(_SEPARATOR)]
    pairs = ((entry[1], Condition(entry[2] or Condition.SUCCEEDED)) for entry in entries if entry)
    return tuple(pairs) if all(entries) else ()


def format_after(entries: Iterable[tuple[str, Condition]]) -> str:
    """Return the value of the label `trainshed-after` for UIDs of jobs and their conditions."""
    suffixes = {Condition.SUCCEEDED: "", Condition.FINISHED: "_finished"}
    return _SEPARATOR.join(f"{job}{suffixes[condition]}" for job, condition in entries)


def explain_dependencies(dependencies: Sequence[Dependency]) -> Waiting:
    """Return why a job with these dependencies waits."""
    jobs = (f"job {other.name.job_id} has {other.condition}" for other in dependencies)
    names = tuple(str(other.name) for other in dependencies)
    return Waiting(WaitReason.JOB, f"waits until {format_list(jobs)}", blockers=names[:_MAX_NAMES])
