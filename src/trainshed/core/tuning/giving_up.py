"""The way out where looking at a tuning job fails each time: it ends as an internal error, and is not looked at for ever."""

from collections.abc import Sequence
from dataclasses import replace

from trainshed.core.failure.evidence import Cause
from trainshed.core.failure.messages import INTERNAL, INTERNAL_ERROR_MESSAGE
from trainshed.core.job.exits import JobError
from trainshed.core.lifecycle import story
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.giving_up import RULE
from trainshed.core.lifecycle.records import Outcome
from trainshed.core.lifecycle.states import JobState
from trainshed.core.study.trials import Trial, TrialState
from trainshed.core.tuning.records import TuningJob


def give_up(job: TuningJob, cause: str, now: int) -> tuple[TuningJob, tuple[TimelineEntry, ...]]:
    """End the job because of `cause`; the jobs of its trials are to be cancelled. Goes by no table: they may be what failed.
    How the job ends stays as it was decided before."""
    error = JobError(INTERNAL, INTERNAL_ERROR_MESSAGE, cause=Cause.SERVICE.value, reason=cause)
    outcome = job.outcome or Outcome(JobState.FAILED, RULE, error, now)
    at = max(now, job.updated)
    ended = replace(
        job,
        outcome=outcome,
        state=outcome.state,
        error=outcome.error,
        ended=at,
        updated=at,
        running=(),
        infeasible=job.infeasible + len(job.running),
    )
    return ended, (story.refused_event("Tuning", cause, now), story.over(outcome, now))


def abandoned(trials: Sequence[Trial], cause: str, now: int) -> tuple[Trial, ...]:
    """The trials that ran, as they end with their job."""
    return tuple(
        replace(
            trial,
            state=TrialState.INFEASIBLE,
            infeasible_reason=f"The service gave its job up: {cause}",
            ended=now,
        )
        for trial in trials
        if not trial.state.is_over
    )
