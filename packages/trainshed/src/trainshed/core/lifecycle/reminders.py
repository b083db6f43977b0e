"""Reminders of a running job (spec/lifecycle#time-limits): that no checkpoint has been written for hours, and
that its running limit is near."""

from collections.abc import Iterator
from typing import Final, assert_never

from trainshed.core.lifecycle import timeline
from trainshed.core.lifecycle.events import CheckpointDue, CheckpointLooked, Event, LimitNears
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.transition import Transition

_HOUR: Final = 3600 * 10**9
CHECKPOINT_HOURS: Final = 4
"""A job is reminded when it has written no checkpoint for this many hours."""
_AHEAD: Final = _HOUR
"""How long before its running limit a job is reminded of it, in nanoseconds."""


def reminder_deadlines(job: Job) -> Iterator[tuple[int, Event]]:
    """Yield the moment (ns) of each next reminder of the job, with its event."""
    if not job.started:
        return
    if watched_bucket(job):
        at = max(job.started, job.checkpoint) + CHECKPOINT_HOURS * _HOUR
        yield at, CheckpointDue(at)
    timeout = job.spec.scheduling.timeout
    if timeout > 2 * _AHEAD and not job.warned_of_limit:
        at = job.started + timeout - _AHEAD
        yield at, LimitNears(at)


def watched_bucket(job: Job) -> str:
    """Return the gs:// prefix below which the job's checkpoints are expected; "" if it named none."""
    return job.spec.job_dir or job.spec.base_output_directory


def take_reminder(
    transition: Transition, event: LimitNears | CheckpointDue | CheckpointLooked
) -> None:
    """Record a reminder once, and remember that it was recorded."""
    match event:
        case LimitNears():
            if not transition.job.warned_of_limit:
                transition.change(warned_of_limit=True)
                transition.record(timeline.limit_nears(transition.job, transition.now))
        case CheckpointDue():
            return  # The controller looks for a checkpoint, and reports by CheckpointLooked.
        case CheckpointLooked():
            since = max(transition.job.started, transition.job.checkpoint)
            if event.written is not None and event.written > since:
                transition.change(checkpoint=event.written)
                return
            if event.at < since + CHECKPOINT_HOURS * _HOUR:
                return  # A second check for the same reminder.
            transition.change(checkpoint=event.at)
            if event.written is not None:
                transition.record(
                    timeline.no_checkpoint(
                        watched_bucket(transition.job), event.at, CHECKPOINT_HOURS
                    )
                )
        case _:
            assert_never(event)
