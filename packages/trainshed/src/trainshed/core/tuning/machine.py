"""The life of a tuning job as pure functions (spec/tuning#trials): the states of its trials' jobs determine
its next state.

The controller passes the running trials to `observe`. It requests as many new trials as `startable_trials`
returns from an algorithm, and stores them with the job (`core.tuning.trial_jobs`). It then cancels the jobs
that `to_cancel` returns. All decisions follow from the stored job and the stored trials, so a restarted
service continues from its last state. Changes of a trial, its job and the tuning job are one commit
(docs/adr/0017)."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.failure.messages import INVALID_ARGUMENT
from trainshed.core.job import JobError
from trainshed.core.lifecycle import timeline as job_timeline
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, TimelineEntry
from trainshed.core.lifecycle.machine import Deadline, give_up_parent
from trainshed.core.lifecycle.records import Job, Outcome
from trainshed.core.lifecycle.states import JobState, JobTrigger
from trainshed.core.lifecycle.transition import WorkTransition
from trainshed.core.names import Api, JobUid
from trainshed.core.study.progress import final_measurement
from trainshed.core.study.records import Measurement, Trial, TrialState
from trainshed.core.study.spec import Goal
from trainshed.core.tuning import timeline
from trainshed.core.tuning.records import RunningTrial, SeenSummaries, TuningJob
from trainshed.core.units import Nanos

_SOME_FAILED = 3
_FAILED_RATIO = 2
"""By default, a job fails if its first trial fails. Later, it fails after three failed trials if more than
twice as many trials failed as succeeded (facts/tuning#failing-trials has no figures; docs/tuning.md)."""


class Sight(Struct, frozen=True):
    """The observed state of a running trial.

    `trial`: the trial's record. `job`: the stored job of the trial, or None if deleted. `measurements`: all
    measurements of the trial, ascending by step. `stored_measurements`: the measurements that are already
    stored. `tags`: all tags for which the program reported a value. `summaries`: the TensorFlow summaries of
    the program, or None if they were not read.
    """

    trial: Trial
    job: Job | None
    measurements: tuple[Measurement, ...] = ()
    stored_measurements: tuple[Measurement, ...] = ()
    tags: tuple[str, ...] = ()
    summaries: SeenSummaries | None = None

    @property
    def new_measurements(self) -> tuple[Measurement, ...]:
        """The measurements that are not stored yet. A measurement with the step and the values of a stored
        one is not new: the program reported another metric, or a retried attempt repeated the step."""
        known = {(stored.step, stored.metrics) for stored in self.stored_measurements}
        return tuple(m for m in self.measurements if (m.step, m.metrics) not in known)


class Transition(WorkTransition[TuningJob]):
    """Collects the changes of a tuning job for one commit."""

    __slots__ = ("measurements", "trials")

    def __init__(self, job: TuningJob, now: Nanos) -> None:
        super().__init__(job, now)
        #: The new or changed trials, by number.
        self.trials: dict[int, Trial] = {}
        #: The new measurements, each with the number of its trial.
        self.measurements: list[tuple[int, Measurement]] = []

    def running(self, number: int) -> RunningTrial | None:
        """Return the running trial with this number, or None if it has ended."""
        return next((other for other in self.job.running if other.number == number), None)

    def current(self, trial: Trial) -> Trial:
        """Return a trial with the changes of this transition."""
        return self.trials.get(trial.number, trial)

    def store(self, trial: Trial) -> None:
        """Store a new or changed trial."""
        self.trials[trial.number] = trial

    def end_trial(self, trial: Trial) -> None:
        """Store a trial that has ended, and remove it from the running trials."""
        self.store(trial)
        self.change(running=tuple(other for other in self.job.running if other.number != trial.number))


def observe(transition: Transition, sights: Sequence[Sight]) -> None:
    """Apply the observed states of the running trials."""
    for sight in sights:
        if (running := transition.running(sight.trial.number)) is not None:
            _apply_sight(transition, running, sight)
    settle(transition)


def cancel(transition: Transition, event: CancelRequested) -> None:
    """Cancel the tuning job and its trials.

    Has no effect if the job has finished or is being cancelled, or if `event` is the end of maxWaitTime and
    the job has started.
    """
    job = transition.job
    if job.state.is_final or (job.outcome is not None and job.outcome.state is JobState.CANCELLED):
        return
    if event.cause is CancelCause.MAX_WAIT and job.started:
        return
    message = job_timeline.cancel_reason(event, job.spec.trial.scheduling)
    transition.cancel(event, message)
    settle(transition)


def stop_trial(transition: Transition, trial: Trial, why: str) -> None:
    """Stop a trial early for the reason `why`. Its measurements count."""
    running = transition.running(trial.number)
    if running is None or running.stopping or transition.job.outcome is not None:
        return
    stopping = replace(running, stopping=why)
    transition.change(
        running=tuple(stopping if other == running else other for other in transition.job.running)
    )
    transition.store(replace(transition.current(trial), state=TrialState.STOPPING, stopped_early=True))
    transition.record(timeline.stopping(trial.number, why, transition.now))


def startable_trials(job: TuningJob) -> int:
    """Return the number of trials that can start now."""
    if job.state.is_final or job.outcome is not None or job.exhausted:
        return 0
    left = job.spec.max_trials - job.started_trials
    return max(0, min(left, job.spec.parallel_trials - len(job.running)))


def to_cancel(job: TuningJob) -> tuple[tuple[JobUid, CancelCause], ...]:
    """Return the jobs of trials to cancel, each with its cause. Repeated cancels have no effect."""
    if job.outcome is not None:
        return tuple((trial.job, CancelCause.PARENT) for trial in job.running)
    return tuple((trial.job, CancelCause.EARLY_STOP) for trial in job.running if trial.stopping)


def deadlines(job: TuningJob) -> tuple[Deadline, ...]:
    """Return the deadlines of an `ml` tuning job, whose time limits apply to the whole job. Return () for a
    tuning job of Vertex, because each trial's job has its own limits (docs/tuning.md)."""
    if job.state.is_final or job.outcome is not None or job.name.api is not Api.ML:
        return ()
    scheduling = job.spec.trial.scheduling
    if job.started:
        end = job.started + scheduling.timeout
        return (Deadline(end, CancelRequested(CancelCause.TIMEOUT, end)),)
    if scheduling.max_wait is not None:
        end = job.eligible + scheduling.max_wait
        return (Deadline(end, CancelRequested(CancelCause.MAX_WAIT, end)),)
    return ()


def _apply_sight(transition: Transition, running: RunningTrial, sight: Sight) -> None:
    transition.measurements += ((running.number, measurement) for measurement in sight.new_measurements)
    job, trial = sight.job, transition.current(sight.trial)
    if job is None:
        _infeasible(transition, trial, "its job was deleted or is unreadable.", None, counts=False)
        return
    _show_progress(transition, job)
    if job.started and not trial.started:
        transition.store(trial := replace(trial, started=job.started))
    if job.state.is_final:
        _end_trial(transition, trial, running, job, sight)


def _show_progress(transition: Transition, job: Job) -> None:
    """Set the state of the tuning job to the most advanced state of its trials."""
    if transition.job.state is JobState.QUEUED and job.state is not JobState.QUEUED and job.attempt:
        transition.fire_job(JobTrigger.ADMITTED)
    if job.started and transition.job.state is JobState.PREPARING and transition.fire_job(JobTrigger.ALL_UP):
        transition.change(started=transition.job.started or job.started)
        transition.record(timeline.running(job.started))


def _end_trial(transition: Transition, trial: Trial, running: RunningTrial, job: Job, sight: Sight) -> None:
    spec = transition.job.spec.study
    final = final_measurement(spec, sight.measurements)
    ran = job.state is JobState.SUCCEEDED or (running.stopping and job.state is JobState.CANCELLED)
    if ran and final is not None:
        done = replace(trial, state=TrialState.SUCCEEDED, final=final, ended=job.ended)
        transition.end_trial(done)
        is_best = _is_best(transition.job, final)
        if is_best:
            transition.change(best=trial.number, best_value=final.value(spec.metrics[0].id))
        transition.change(succeeded=transition.job.succeeded + 1)
        transition.record(timeline.success(spec, done, is_best=is_best, now=transition.now))
        return
    failed = job.state is JobState.FAILED
    if job.state is JobState.SUCCEEDED:
        api, wanted = transition.job.name.api, spec.metrics[0].id
        reason = timeline.no_metric(api, wanted, sight.tags, sight.summaries)
    elif job.error:
        reason = job.error.message
    else:
        reason = "its job failed." if failed else "its job was cancelled."
    counts = job.state is not JobState.CANCELLED
    error = job.error if failed else None
    _infeasible(transition, replace(trial, ended=job.ended), reason, error, counts=counts)


def _infeasible(
    transition: Transition, trial: Trial, reason: str, error: JobError | None, *, counts: bool
) -> None:
    over = replace(
        trial, state=TrialState.INFEASIBLE, infeasible_reason=reason, ended=trial.ended or transition.now
    )
    transition.end_trial(over)
    job = transition.job
    transition.change(infeasible=job.infeasible + 1, failed=job.failed + counts)
    transition.record(timeline.infeasible(over, transition.now))
    if counts and job.outcome is None and _too_many_failed(transition.job):
        message = timeline.too_many_failed(transition.job, over, error)
        code = error.code if error else INVALID_ARGUMENT
        failed = JobError(code, message, cause="trials", reason=reason)
        transition.change(outcome=Outcome(JobState.FAILED, "too_many_failed_trials", failed, transition.now))


def _too_many_failed(job: TuningJob) -> bool:
    """Return whether the job fails because of its failed trials (facts/tuning#failing-trials)."""
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


def settle(transition: Transition) -> None:
    """Finish the job once no trial runs and no more trials follow."""
    job = transition.job
    if job.running or job.state.is_final:
        return
    outcome = job.outcome
    if outcome is None:
        if job.started_trials < job.spec.max_trials and not job.exhausted:
            return
        if job.succeeded:
            outcome = Outcome(JobState.SUCCEEDED, "all_trials_over", at=transition.now)
        else:
            message = f"None of the {job.started_trials} trials has a result. Each trial shows its reason."
            if not job.started_trials:
                message = "The earlier jobs tried every point of the search space. Widen the parameters."
            error = JobError(INVALID_ARGUMENT, message, cause="trials")
            outcome = Outcome(JobState.FAILED, "no_trial_succeeded", error, transition.now)
        transition.change(outcome=outcome)
    if outcome.state is JobState.SUCCEEDED and job.state is JobState.QUEUED:
        transition.fire_job(JobTrigger.ADMITTED)
    transition.fire_job(JobTrigger[outcome.state.name])
    transition.change(error=outcome.error, ended=max(transition.now, job.updated))
    transition.record(timeline.end(transition.job, transition.now))


def give_up(job: TuningJob, cause: str, now: Nanos) -> tuple[TuningJob, tuple[TimelineEntry, ...]]:
    """End the job because of `cause`. The caller must cancel the jobs of its trials."""
    ended, entries = give_up_parent(job, "Tuning", cause, now)
    return replace(ended, running=(), infeasible=job.infeasible + len(job.running)), entries


def abandon(trials: Sequence[Trial], cause: str, now: Nanos) -> tuple[Trial, ...]:
    """Return the unfinished trials of an ended job as infeasible."""
    return tuple(
        replace(
            trial,
            state=TrialState.INFEASIBLE,
            infeasible_reason=f"The service ended its job because of an error: {cause}",
            ended=now,
        )
        for trial in trials
        if not trial.state.is_over
    )
