"""What a long job is told before it is too late: no checkpoint for hours, the running limit is near (SPEC §2, §8)."""

from collections.abc import Iterator
from typing import Final, assert_never

from trainshed.core.lifecycle import story
from trainshed.core.lifecycle.events import CheckpointDue, CheckpointLooked, Event, LimitNears
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.turn import Turn

_HOUR: Final = 3600 * 10**9
CHECKPOINT_HOURS: Final = 4
_AHEAD: Final = _HOUR


def deadlines_of(job: Job) -> Iterator[tuple[int, Event]]:
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
    """The gs:// prefix below which the job's checkpoints are expected; "" if it named none."""
    return job.spec.job_dir or job.spec.base_output_directory


def take(turn: Turn, event: LimitNears | CheckpointDue | CheckpointLooked) -> None:
    match event:
        case LimitNears():
            if not turn.job.warned_of_limit:
                turn.change(warned_of_limit=True)
                turn.tell(story.limit_nears(turn.job, turn.now))
        case CheckpointDue():
            return  # the controller looks, and says what it saw
        case CheckpointLooked():
            since = max(turn.job.started, turn.job.checkpoint)
            if event.written > since:
                turn.change(checkpoint=event.written)
                return
            if event.at < since + CHECKPOINT_HOURS * _HOUR:
                return  # looked twice for one reminder
            turn.change(checkpoint=event.at)
            if event.written >= 0:
                turn.tell(story.no_checkpoint(watched_bucket(turn.job), event.at, CHECKPOINT_HOURS))
        case _:
            assert_never(event)
