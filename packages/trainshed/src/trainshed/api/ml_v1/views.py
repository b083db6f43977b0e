"""Converts records to `ml` v1 messages (facts/resources#ml)."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import Message
from msgspec import Struct

from trainshed.api.calls.timestamps import set_micros
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.pipelines import Pipeline
from trainshed.core.study.records import Trial, TrialState
from trainshed.core.study.spec import Goal, Metric
from trainshed.core.tuning.records import TuningJob
from trainshed.core.tuning.trial_jobs import printed
from trainshed.core.works import Work
from trainshed.wire import json as wire_json

STATES: Final[Mapping[str, JobState | None]] = {
    **{state.value: state for state in JobState},
    "STATE_UNSPECIFIED": None,
}
"""Public state names; None for the one that no job here is ever in."""

JOB: Final = "google.cloud.ml.v1.Job"


class Evidence(Struct, frozen=True):
    """A tuning job's trials, and, if they were read, the jobs that evaluate them; in any order."""

    trials: Sequence[Trial] = ()
    jobs: Sequence[Job] = ()


NOTHING_TRIED: Final = Evidence()


def job(record: Work, etag: str, position: int = 0, evidence: Evidence = NOTHING_TRIED) -> Message:
    """Return the Job message of a stored job; `etag` as the store gives it. `position`: its place in the
    queue, 0 = none. `evidence`: what a tuning job has tried."""
    view = wire_json.from_public(JOB, json.loads(record.public_json))
    set_outputs(view, record, etag, position, evidence)
    return view


def set_outputs(
    view: Any, record: Work, etag: str, position: int = 0, evidence: Evidence = NOTHING_TRIED
) -> None:
    view.job_position = position
    view.state = record.state.value
    view.etag = base64.b64decode(etag)
    set_micros(view.create_time, record.created)
    set_micros(view.start_time, record.started)
    set_micros(view.end_time, record.ended)
    if isinstance(record, TuningJob):
        _set_tuning_output(view.training_output, record, evidence)
    if message := _error_message(record):
        view.error_message = message
    view.labels.clear()
    view.labels.update(dict(record.labels))


def _set_tuning_output(output: Any, record: TuningJob, evidence: Evidence) -> None:
    """Set the trials: finished ones first, the best of them at the top, then those without a result, then
    those that run (facts/resources#ml)."""
    output.is_hyperparameter_tuning_job = True
    metric = record.spec.study.metrics[0]
    output.hyperparameter_metric_tag = metric.id
    output.completed_trial_count = record.succeeded
    states = {job.parent.trial: job.state for job in evidence.jobs if job.parent is not None}
    for trial in sorted(evidence.trials, key=lambda trial: _rank(trial, metric)):
        _set_trial(output.trials.add(), trial, metric, states.get(trial.number))


def _rank(trial: Trial, metric: Metric) -> tuple[int, float, int]:
    """Return a sort key: the best first, then those that ended without a result, then those that run; of
    equals the earlier one."""
    value = trial.final.value(metric.id) if trial.final is not None else None
    if value is None:
        return (1 if trial.state.is_over else 2, 0.0, trial.number)
    return (0, -value if metric.goal is Goal.MAXIMIZE else value, trial.number)


def _set_trial(view: Any, trial: Trial, metric: Metric, job: JobState | None) -> None:
    view.trial_id = str(trial.number)
    for name, value in trial.parameters:
        view.hyperparameters[name] = printed(value)
    value = trial.final.value(metric.id) if trial.final is not None else None
    if trial.final is not None and value is not None:
        view.final_metric.training_step = trial.final.step
        view.final_metric.objective_value = value
    view.is_trial_stopped_early = trial.stopped_early
    view.state = _trial_state(trial, job).value
    set_micros(view.start_time, trial.started)
    set_micros(view.end_time, trial.ended)


def _trial_state(trial: Trial, job: JobState | None) -> JobState:
    """Return a trial's state as a job's state: that of its own job if it is known, except for one that ended
    without a result."""
    if trial.state is TrialState.SUCCEEDED:
        return JobState.SUCCEEDED
    if trial.state is TrialState.INFEASIBLE:
        return JobState.CANCELLED if job is JobState.CANCELLED else JobState.FAILED
    return job or JobState.RUNNING


def _error_message(record: Work) -> str:
    """Return what went wrong, or, from the moment a cancellation is decided, its reason."""
    if record.error is not None:
        return record.error.message
    decided = None if isinstance(record, Pipeline) else record.outcome
    if record.state is JobState.CANCELLING and decided is not None and decided.error is not None:
        return decided.error.message
    return ""
