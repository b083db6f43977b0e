"""The effect of the end of a job on the jobs that depend on it (spec/lifecycle#dependencies)."""

from typing import Final

from trainshed.core.dependencies import explain_dependencies
from trainshed.core.failure.messages import FAILED_PRECONDITION
from trainshed.core.job import JobError
from trainshed.core.lifecycle import timeline
from trainshed.core.lifecycle.events import DependencyEnded
from trainshed.core.lifecycle.records import Outcome
from trainshed.core.lifecycle.states import JobState
from trainshed.core.lifecycle.transition import W, WorkTransition

RULE: Final = "dependency_not_met"
_ENDS: Final = {
    JobState.SUCCEEDED: "has succeeded",
    JobState.FAILED: "has failed",
    JobState.CANCELLED: "was cancelled",
    None: "was deleted",
}


def end_dependency(transition: WorkTransition[W], event: DependencyEnded) -> Outcome | None:
    """Apply the end of a job to a work that waits for it. The last end that meets its condition makes the
    work eligible for capacity. Return the outcome of a work that can no longer start, otherwise None. Has no
    effect if the work does not wait for the job."""
    work = transition.job
    ended = next((other for other in work.dependencies if other.uid == event.uid), None)
    if ended is None or not work.is_held:
        return None
    end = _ENDS[event.state]
    if not ended.is_met(succeeded=event.state is JobState.SUCCEEDED):
        advice = (
            "To run this job without waiting, use `trainshed jobs retry`. To wait for any end of a job, use "
            f"--after {ended.name.job_id}:finished, or the label value {ended.uid}_finished."
        )
        text = f"The job was not started. It had to wait for the success of {ended.name}, which {end}."
        error = JobError(FAILED_PRECONDITION, f"{text}\n{advice}", cause="dependency", advice=advice)
        return Outcome(JobState.FAILED, RULE, error, transition.now)
    rest = tuple(other for other in work.dependencies if other is not ended)
    transition.change(dependencies=rest, unblocked=0 if rest else transition.now)
    still = f" The job still {explain_dependencies(rest).message}." if rest else ""
    message = f"{ended.name} {end}.{still}"
    transition.record(timeline.dependency_met(message, ended, transition.now))
    return None
