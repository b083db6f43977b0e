"""The texts of a tuning job's timeline: the entries of its trials, and the reasons for its end. This module
makes no decisions."""

from trainshed.core.errors import format_list
from trainshed.core.job import JobError
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api
from trainshed.core.study.records import Parameters, Trial
from trainshed.core.study.spec import StudySpec, Value
from trainshed.core.tuning.records import SeenSummaries, TuningJob
from trainshed.core.units import Nanos


def start(job: TuningJob, trial: Trial, job_name: str, now: Nanos) -> TimelineEntry:
    end = job.spec.first_trial + job.spec.max_trials - 1
    text = f"Trial {trial.number} of {end}: {assignment(trial.parameters)}."
    details = {"trial": trial.number, "parameters": dict(trial.parameters), "job": job_name}
    return TimelineEntry(now, "trial_began", text, details)


def success(spec: StudySpec, trial: Trial, *, is_best: bool, now: Nanos) -> TimelineEntry:
    assert trial.final is not None
    metrics, step = dict(trial.final.metrics), trial.final.step
    values = ", ".join(f"{name} {value:g}" for name, value in metrics.items())
    early = " was stopped early and" if trial.stopped_early else ""
    best = ", the best so far" if is_best and len(spec.metrics) == 1 else ""
    text = f"Trial {trial.number}{early} reached {values} at step {step}{best}."
    details = {"trial": trial.number, "metrics": metrics, "step": step, "best": is_best}
    return TimelineEntry(now, "trial_succeeded", text, details)


def infeasible(trial: Trial, now: Nanos) -> TimelineEntry:
    number, reason = trial.number, trial.infeasible_reason
    text = f"Trial {number} has no result: {reason}"
    return TimelineEntry(now, "trial_infeasible", text, {"trial": number, "reason": reason})


def stopping(number: int, why: str, now: Nanos) -> TimelineEntry:
    text = f"Trial {number} is stopped early: {why}"
    return TimelineEntry(now, "trial_stopping", text, {"trial": number, "why": why})


def random_suggestions(count: int, why: str, now: Nanos) -> TimelineEntry:
    trials = "The next trial is" if count == 1 else f"The next {count} trials are"
    return TimelineEntry(now, "warning", f"{trials} drawn at random because the algorithm failed ({why}).")


def exhaustion(job: TuningJob, now: Nanos) -> TimelineEntry:
    text = f"Every point of the search space was tried, so the job ends after {job.started_trials} trials."
    return TimelineEntry(now, "exhausted", text)


def running(now: Nanos) -> TimelineEntry:
    return TimelineEntry(now, "running", "The first trial is running.")


def end(job: TuningJob, now: Nanos) -> TimelineEntry:
    """Return the entry for the job's end, with its best trial."""
    state = job.state.value.lower()
    counts = f"{job.succeeded} of {job.started_trials} trials succeeded"
    best = f"; the best is trial {job.best} with {job.best_value:g}" if job.best else ""
    ended = "was cancelled" if job.state is JobState.CANCELLED else state
    why = f" {job.error.message}" if job.error and job.state is JobState.FAILED else ""
    message = f"The tuning job {ended}: {counts}{best}.{why}"
    return TimelineEntry(now, state, message, {"best": job.best, "succeeded": job.succeeded})


def no_metric(api: Api, wanted: str, reported: tuple[str, ...], summaries: SeenSummaries | None) -> str:
    """Return the reason why a trial has no result although its program succeeded. The most common cause is a
    misspelled tag."""
    field = "hyperparameterMetricTag" if api is Api.ML else "metricId"
    names = (*reported, *(summaries.tags if summaries is not None else ()))
    if wanted in names:
        return f"its program measured no finite value of the metric {wanted!r}, only values such as nan."
    below = f", or write it as a TensorFlow summary below {summaries.uri}" if summaries else ""
    way = (
        "Report it with cloudml-hypertune: "
        f"hypertune.HyperTune().report_hyperparameter_tuning_metric(...){below}."
    )
    if names:
        text = f"its program measured {format_list(map(repr, names))}, but {field} is {wanted!r}"
        return f"{text}: set it to one of these names. Alternatively: {way}"
    return (
        f"its program ended without reporting a finite value of the metric {wanted!r} "
        f"(its log shows values that do not count, such as nan). {way}"
    )


def too_many_failed(job: TuningJob, trial: Trial, cause: JobError | None) -> str:
    if job.failed == 1:
        # The public service ends a job whose first trial fails, without trying the other trials
        # (facts/tuning#failing-trials).
        head = f"Trial {trial.number} failed, and the other trials would fail too"
    else:
        head = (
            f"{job.failed} trials failed ({job.succeeded} succeeded); the last one was trial {trial.number}"
        )
    return f"{head}: {cause.message if cause else trial.infeasible_reason}"


def assignment(parameters: Parameters) -> str:
    """Format parameters like `lr=0.01, depth=3`."""
    return ", ".join(f"{name}={format_value(value)}" for name, value in parameters) or "no parameters"


def format_value(value: Value) -> str:
    """Format a parameter's value for users: floats with six digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
