"""Tuning jobs, their trials, and pipelines as plain JSON of ours; what all works have in common is in `views`.

Tuning: `{metric, goal, algorithm, maxTrials, parallelTrials, firstTrial, replicas, succeeded, infeasible, failed, running,
best, bestValue, exhausted, stopping}`. `replicas`: of each trial's job; `failed`: those of the infeasible trials that count
against the job; `best`: number of the best trial so far, 0 = none, and `bestValue` null; `exhausted`: nothing is left to try;
`stopping`: the rule by which trials are stopped early, "" = none.
Trial: `{number, state, parameters, value, step, metrics, createTime, startTime, endTime, job, jobState, stoppedEarly, reason,
curve}`. `value`, `step`, `metrics`: of the final measurement, null, 0 and {} before it; `job`: the name of the job that
evaluates it, and `jobState` its state, "" if it was deleted; `reason`: why it is infeasible, or is being stopped; `curve`:
`[[step, value], …]` of the objective, at most 60 points of what was measured, the first and the last among them.
Pipeline: `{task, job, jobState, bestJob, model}`: names of its backing job, of the best trial's job, and of the model
version that it left ("" = none yet).
"""

from collections.abc import Sequence
from typing import Final, assert_never

from trainshed.api.aiplatform_v1.views import sibling_name
from trainshed.api.calls.timestamps import text_micros
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, Collection
from trainshed.core.pipelines.records import Pipeline
from trainshed.core.study.spec import (
    ConvexStopping,
    DecayCurveStopping,
    MedianStopping,
    StudySpec,
)
from trainshed.core.study.trials import Measurement, Trial
from trainshed.core.tuning.records import TuningJob
from trainshed.wire.trainshed_v1 import jobs as records

_POINTS: Final = 60
"""Of a curve; more than a screen shows of it."""


def tuning_view(job: TuningJob) -> records.Tuning:
    spec = job.spec.study
    return records.Tuning(
        metric=spec.metrics[0].id,
        goal=spec.metrics[0].goal.value,
        algorithm=spec.algorithm.value,
        max_trials=job.spec.max_trials,
        parallel_trials=job.spec.parallel_trials,
        first_trial=job.spec.first_trial,
        replicas=len(job.spec.trial.replicas()),
        succeeded=job.succeeded,
        infeasible=job.infeasible,
        failed=job.failed,
        running=len(job.running),
        best=job.best,
        best_value=job.best_value if job.best else None,
        exhausted=job.exhausted,
        stopping=_stopping(spec),
    )


def trial_view(
    job: TuningJob, trial: Trial, measured: Sequence[Measurement], state: JobState | None
) -> records.Trial:
    """`measured`: ascending by step; `state`: of the trial's job, None if it was deleted."""
    metric = job.spec.study.metrics[0].id
    final = trial.final
    stopping = {each.number: each.stopping for each in job.running}.get(trial.number, "")
    return records.Trial(
        number=trial.number,
        state=trial.state.value,
        parameters=dict(trial.parameters),
        value=final.value(metric) if final else None,
        step=final.step if final else 0,
        metrics=dict(final.metrics) if final else {},
        create_time=text_micros(trial.created),
        start_time=text_micros(trial.started),
        end_time=text_micros(trial.ended),
        job=trial_job_name(job, trial),
        job_state=state.value if state else "",
        stopped_early=trial.stopped_early,
        reason=trial.infeasible_reason or stopping,
        curve=_thinned([(m.step, v) for m in measured if (v := m.value(metric)) is not None]),
    )


def trial_job_name(job: TuningJob, trial: Trial) -> str:
    """The public name of the job that evaluates a trial."""
    if job.name.api is Api.ML:
        return str(job.name.of_trial(trial.number))
    return sibling_name(job.name, trial.job, Collection.CUSTOM_JOBS)


def pipeline_view(pipeline: Pipeline, job: str, state: JobState | None) -> records.Pipeline:
    """`job`: the name of its backing job, and `state` that one's, None if it was deleted."""
    return records.Pipeline(
        task=pipeline.spec.task.value,
        job=job,
        job_state=state.value if state else "",
        best_job=sibling_name(pipeline.name, pipeline.best_job, Collection.CUSTOM_JOBS),
        model=pipeline.model,
    )


def _thinned(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    if len(points) <= _POINTS:
        return tuple(points)
    last = len(points) - 1
    return tuple(points[round(index * last / (_POINTS - 1))] for index in range(_POINTS))


def _stopping(spec: StudySpec) -> str:
    match spec.stopping:
        case None:
            return ""
        case MedianStopping():
            return "median"
        case DecayCurveStopping():
            return "decay_curve"
        case ConvexStopping():
            return "convex"
        case _:
            assert_never(spec.stopping)
