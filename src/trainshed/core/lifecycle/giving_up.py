"""The way out where the machine itself fails: the job ends as an internal error, and no event is tried for ever."""

from dataclasses import replace

from trainshed.core.failure.messages import INTERNAL, INTERNAL_ERROR_MESSAGE
from trainshed.core.lifecycle import story
from trainshed.core.lifecycle.events import Event, ReplicaExited, ReplicaLost
from trainshed.core.lifecycle.records import Job, JobError, Outcome
from trainshed.core.lifecycle.states import AttemptState, JobState, ReplicaState
from trainshed.core.lifecycle.turn import Step

RULE = "machine_failed"
_MAY_LIVE = (AttemptState.STARTING, AttemptState.RUNNING, AttemptState.STOPPING)


def give_up(job: Job, event: Event, cause: str, now: int) -> Step:
    """End the job because `event` could not be applied (`cause`). Goes by no table: they may be what failed. An end
    that the event told of is taken as such, so that the job does not wait for it again."""
    if job.state.is_final:
        return Step(job)
    replicas = job.replicas
    if isinstance(event, ReplicaExited | ReplicaLost) and event.attempt == job.attempt:
        replicas = tuple(
            replace(r, state=ReplicaState.LOST)
            if r.id == event.replica and r.incarnation == event.incarnation
            else r
            for r in replicas
        )
    error = JobError(INTERNAL, INTERNAL_ERROR_MESSAGE, cause="service", reason=cause)
    lives = job.phase in _MAY_LIVE and any(not r.state.is_over for r in replicas)
    ended = replace(
        job,
        replicas=replicas,
        outcome=Outcome(JobState.FAILED, RULE, error, now),
        retry=None,
        phase=AttemptState.STOPPING if lives else AttemptState.OVER,
        state=job.state if lives else JobState.FAILED,
        error=None if lives else error,
        ended=0 if lives else now,
        updated=now,
    )
    return Step(ended, (story.refused_event(type(event).__name__, cause, now),))
