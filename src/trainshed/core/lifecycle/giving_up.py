"""The way out where the machine itself fails: the job ends as an internal error, and no event is tried for ever."""

from dataclasses import replace

from trainshed.core.failure.evidence import Cause
from trainshed.core.failure.messages import INTERNAL, INTERNAL_ERROR_MESSAGE
from trainshed.core.job.exits import JobError
from trainshed.core.lifecycle import story
from trainshed.core.lifecycle.events import Event, ReplicaExited, ReplicaLost
from trainshed.core.lifecycle.records import Job, Outcome, Replica
from trainshed.core.lifecycle.states import AttemptState, JobState, ReplicaState
from trainshed.core.lifecycle.turn import Step

RULE = "machine_failed"
_MAY_LIVE = (AttemptState.STARTING, AttemptState.RUNNING, AttemptState.STOPPING)


def give_up(job: Job, event: Event, cause: str, now: int) -> Step:
    """End the job because `event` could not be applied (`cause`). Goes by no table: they may be what failed. An end
    that the event told of is taken as such, so that the job does not wait for it again. How the job ends stays as it
    was decided before: an accepted cancel is never lost (SPEC §2)."""
    if job.state.is_final:
        return Step(job)
    replicas = tuple(
        replace(r, state=ReplicaState.LOST) if _is_nowhere(job, r, event) else r
        for r in job.replicas
    )
    error = JobError(INTERNAL, INTERNAL_ERROR_MESSAGE, cause=Cause.SERVICE.value, reason=cause)
    outcome = job.outcome or Outcome(JobState.FAILED, RULE, error, now)
    lives = job.phase in _MAY_LIVE and any(not r.state.is_over for r in replicas)
    at = max(now, job.updated)
    ended = replace(
        job,
        replicas=replicas,
        outcome=outcome,
        retry=None,
        phase=AttemptState.STOPPING if lives else AttemptState.OVER,
        state=job.state if lives else outcome.state,
        error=None if lives else outcome.error,
        ended=0 if lives else at,
        updated=at,
    )
    return Step(ended, (story.refused_event(type(event).__name__, cause, now),))


def _is_nowhere(job: Job, replica: Replica, event: Event) -> bool:
    """Whether nobody will report the replica's end (again): it has no place, or the event told of it."""
    if replica.state.is_over:
        return False
    told = isinstance(event, ReplicaExited | ReplicaLost) and (
        event.attempt,
        event.replica,
        event.incarnation,
    ) == (job.attempt, replica.id, replica.incarnation)
    return told or not replica.node
