"""The life of a tuning job as pure functions (SPEC §6): what its trials' jobs show leads to its next state.

The shell looks at the trials that run (`observe`), asks an algorithm for as many further ones as are `wanted`, stores
them with the job (`core.tuning.beginning`), and cancels the jobs of `to_cancel`. Everything follows from the stored job and the stored
trials, so that looking again after a crash goes on where it ended; a trial, its job and the tuning job's own record
are one commit (docs/adr/0017).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainshed.core.failure.messages import CANCELLED, INTERNAL, INVALID_ARGUMENT
from trainshed.core.job.exits import JobError
from trainshed.core.lifecycle import story as job_story
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.core.lifecycle.machine import Deadline
from trainshed.core.lifecycle.records import Job, Outcome
from trainshed.core.lifecycle.states import JobState, JobTrigger
from trainshed.core.names import Api, JobUid
from trainshed.core.study.final import final_measurement
from trainshed.core.study.spec import Goal
from trainshed.core.study.trials import Measurement, Trial, TrialState
from trainshed.core.tuning import story
from trainshed.core.tuning.records import RunningTrial, SeenSummaries, TuningJob
from trainshed.core.tuning.turn import Turn

_SOME_FAILED = 3
_FAILED_RATIO = 2
"""Without a limit of its own a job ends at its first trial if that fails, and later once three trials have failed and more
than twice as many as have succeeded (facts §7.3 gives no figures; docs/choices.md)."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen of a running trial: its record; its job as it is stored (None: it was deleted); all that it measured,
    ascending by step, and what of that is stored already; every tag under which its program reported anything; and what it
    wrote as TensorFlow summaries (None: nobody looked)."""

    trial: Trial
    job: Job | None
    measurements: tuple[Measurement, ...] = ()
    stored: tuple[Measurement, ...] = ()
    tags: tuple[str, ...] = ()
    summaries: SeenSummaries | None = None

    @property
    def news(self) -> tuple[Measurement, ...]:
        """What is not stored yet. A value that is measured once more at its step is none: the program reported another
        metric there, or an attempt that is tried again came by."""
        known = {(one.step, one.metrics) for one in self.stored}
        return tuple(one for one in self.measurements if (one.step, one.metrics) not in known)


def observe(turn: Turn, sights: Sequence[Sight]) -> None:
    """Take in what the running trials show."""
    for sight in sights:
        running = turn.running(sight.trial.number)
        if running is not None:
            _take(turn, running, sight)
    settle(turn)


def cancel(turn: Turn, event: CancelRequested) -> None:
    """End the job and its trials; of a job that is over, or is being cancelled already, nothing changes."""
    job = turn.job
    if job.state.is_final or (job.outcome is not None and job.outcome.state is JobState.CANCELLED):
        return
    if event.cause is CancelCause.MAX_WAIT and job.started:
        return
    message = job_story.cancel_reason(event.cause, job.spec.trial.scheduling)
    turn.goes(JobTrigger.CANCEL_ACCEPTED)
    turn.tell(story.cancel_accepted(message, event.at))
    error = JobError(CANCELLED, message, cause="cancelled")
    turn.change(outcome=Outcome(JobState.CANCELLED, f"cancelled_{event.cause}", error, event.at))
    settle(turn)


def stop_trial(turn: Turn, trial: Trial, why: str, predicted: Measurement | None = None) -> None:
    """End a trial early, for `why`; what it has measured counts, and behind it what is `predicted`."""
    running = turn.running(trial.number)
    if running is None or running.stopping or turn.job.outcome is not None:
        return
    turn.change_running(replace(running, stopping=why, predicted=predicted))
    turn.store(replace(turn.current(trial), state=TrialState.STOPPING, stopped_early=True))
    turn.tell(story.stopping(trial.number, why, turn.now))


def update_final(turn: Turn, trial: Trial, predicted: Measurement) -> None:
    """What is predicted of a trial that was stopped early is another value by now."""
    trial = turn.current(trial)
    if trial.state is TrialState.SUCCEEDED and trial.stopped_early:
        turn.store(replace(trial, final=predicted))


def fail(turn: Turn, message: str, reason: str) -> None:
    """The service itself cannot go on with the job: `message` for everybody, `reason` what was wrong."""
    if turn.job.outcome is None:
        error = JobError(INTERNAL, message, cause="service", reason=reason)
        turn.change(outcome=Outcome(JobState.FAILED, "tuning_failed", error, turn.now))
        settle(turn)


def reach_limit(turn: Turn, why: str, running: Sequence[Trial]) -> None:
    """A limit of the study itself was reached (`core.study.limits`): no trial begins any more, and those that run are
    stopped early if the study says so."""
    if turn.job.exhausted or turn.job.outcome is not None:
        return
    if turn.job.spec.study.limits.stop_asap:
        for trial in running:
            stop_trial(turn, trial, why)
    turn.change(exhausted=True)
    turn.tell(story.limit_reached(why, turn.now))
    settle(turn)


def wanted(job: TuningJob) -> int:
    """How many trials should begin now."""
    if job.state.is_final or job.outcome is not None or job.exhausted:
        return 0
    left = job.spec.max_trials - job.begun
    return max(0, min(left, job.spec.parallel_trials - len(job.running)))


def to_cancel(job: TuningJob) -> tuple[tuple[JobUid, CancelCause], ...]:
    """Jobs of trials that are to end; cancelling one again harms nothing."""
    if job.outcome is not None:
        return tuple((each.job, CancelCause.PARENT) for each in job.running)
    return tuple((each.job, CancelCause.EARLY_STOP) for each in job.running if each.stopping)


def deadlines(job: TuningJob) -> tuple[Deadline, ...]:
    """`ml`: the limits of time are the whole job's. Vertex: each trial keeps its own (docs/choices.md)."""
    if job.state.is_final or job.outcome is not None or job.name.api is not Api.ML:
        return ()
    scheduling = job.spec.trial.scheduling
    if job.started:
        end = job.started + scheduling.timeout
        return (Deadline(end, CancelRequested(CancelCause.TIMEOUT, end)),)
    if scheduling.max_wait is not None:
        end = job.created + scheduling.max_wait
        return (Deadline(end, CancelRequested(CancelCause.MAX_WAIT, end)),)
    return ()


def _take(turn: Turn, running: RunningTrial, sight: Sight) -> None:
    for measurement in sight.news:
        turn.measure(running.number, measurement)
    job = sight.job
    if job is None:
        _infeasible(turn, sight.trial, "its job was deleted.", None, counts=False)
        return
    _show_progress(turn, job)
    trial = turn.current(sight.trial)
    if job.started and not trial.started:
        turn.store(trial := replace(trial, started=job.started))
    if job.state.is_final:
        _ended(turn, trial, running, job, sight)


def _show_progress(turn: Turn, job: Job) -> None:
    """The tuning job is where the first of its trials came to."""
    if turn.job.state is JobState.QUEUED and job.state is not JobState.QUEUED and job.attempt:
        turn.goes(JobTrigger.ADMITTED)
    if job.started and turn.job.state is JobState.PREPARING and turn.goes(JobTrigger.ALL_UP):
        turn.change(started=turn.job.started or job.started)
        turn.tell(story.running(job.started))


def _ended(turn: Turn, trial: Trial, running: RunningTrial, job: Job, sight: Sight) -> None:
    spec = turn.job.spec.study
    measured = sight.measurements
    if running.predicted is not None and job.state is JobState.CANCELLED:
        measured = (*measured, running.predicted)
        turn.measure(running.number, running.predicted)
    final = final_measurement(spec, measured)
    ran = job.state is JobState.SUCCEEDED or (running.stopping and job.state is JobState.CANCELLED)
    if ran and final is not None:
        done = replace(trial, state=TrialState.SUCCEEDED, final=final, ended=job.ended)
        turn.over(done)
        is_best = _is_best(turn.job, final)
        best = (
            {"best": trial.number, "best_value": final.value(spec.metrics[0].id)} if is_best else {}
        )
        turn.change(succeeded=turn.job.succeeded + 1, **best)
        turn.tell(story.succeeded(spec, done, is_best=is_best, now=turn.now))
        return
    if job.state is JobState.SUCCEEDED:
        wanted = spec.metrics[0].id
        reason = story.no_metric(turn.job.name.api, wanted, sight.tags, sight.summaries)
        _infeasible(turn, trial, reason, None, counts=True, at=job.ended)
    elif job.state is JobState.FAILED:
        reason = job.error.message if job.error else "its job failed."
        _infeasible(turn, trial, reason, job.error, counts=True, at=job.ended)
    else:
        reason = job.error.message if job.error else "its job was cancelled."
        _infeasible(turn, trial, reason, None, counts=False, at=job.ended)


def _infeasible(
    turn: Turn, trial: Trial, reason: str, error: JobError | None, *, counts: bool, at: int = 0
) -> None:
    over = replace(
        turn.current(trial),
        state=TrialState.INFEASIBLE,
        infeasible_reason=reason,
        ended=at or turn.now,
    )
    turn.over(over)
    job = turn.job
    turn.change(infeasible=job.infeasible + 1, failed=job.failed + counts)
    turn.tell(story.infeasible(over, turn.now))
    if counts and job.outcome is None and _too_many_failed(turn.job):
        message = story.too_many_failed(turn.job, over, error)
        code = error.code if error else INVALID_ARGUMENT
        failed = JobError(code, message, cause="trials", reason=reason)
        turn.change(outcome=Outcome(JobState.FAILED, "too_many_failed_trials", failed, turn.now))


def _too_many_failed(job: TuningJob) -> bool:
    """Facts §7.3."""
    if limit := job.spec.max_failed_trials:
        return job.failed >= limit
    if job.succeeded + job.infeasible == 1:
        return True
    return job.failed >= _SOME_FAILED and job.failed > _FAILED_RATIO * job.succeeded


def _is_best(job: TuningJob, final: Measurement) -> bool:
    metric = job.spec.study.metrics[0]
    value = final.value(metric.id)
    if value is None or not job.best:
        return value is not None
    return value > job.best_value if metric.goal is Goal.MAXIMIZE else value < job.best_value


def settle(turn: Turn) -> None:
    """The final state, as soon as no trial runs and none is to follow."""
    job = turn.job
    if job.running or job.state.is_final:
        return
    outcome = job.outcome
    if outcome is None:
        if job.begun < job.spec.max_trials and not job.exhausted:
            return
        outcome = _natural_end(job, turn.now)
        turn.change(outcome=outcome)
    if outcome.state is JobState.SUCCEEDED and job.state is JobState.QUEUED:
        turn.goes(JobTrigger.ADMITTED)
    turn.goes(
        {
            JobState.SUCCEEDED: JobTrigger.SUCCEEDED,
            JobState.FAILED: JobTrigger.FAILED,
            JobState.CANCELLED: JobTrigger.CANCELLED,
        }[outcome.state]
    )
    turn.change(error=outcome.error, ended=max(turn.now, job.updated))
    turn.tell(story.over(turn.job, turn.now))


def _natural_end(job: TuningJob, now: int) -> Outcome:
    if job.succeeded:
        return Outcome(JobState.SUCCEEDED, "all_trials_over", at=now)
    message = f"None of the {job.begun} trials has a result; each trial says why."
    error = JobError(INVALID_ARGUMENT, message, cause="trials")
    return Outcome(JobState.FAILED, "no_trial_succeeded", error, now)
