"""Tuning jobs, pipelines and studies for tests: small, valid and always the same."""

import json
from typing import Any

from tests.unit.jobs import CREATED, MACHINE, program
from trainshed.core.job import JobSpec, Scheduling, WorkerPool
from trainshed.core.names import Api, Collection, JobName, JobUid, StudyName
from trainshed.core.pipelines import ModelDraft, Pipeline, PipelineSpec, Task
from trainshed.core.study.records import Study, StudyUid
from trainshed.core.study.spec import Goal, Metric, Parameter, ParameterType, Selection, StudySpec
from trainshed.core.tuning.records import TuningJob, TuningSpec

PROJECT, REGION = "demo", "us-central1"
METRIC = "acc"
OUTPUT = "gs://b/out"


def study_spec(goal: Goal = Goal.MAXIMIZE, selection: Selection = Selection.LAST) -> StudySpec:
    """Return a study with one parameter `x` from 0 to 1, and one metric."""
    return StudySpec(
        (Parameter("x", ParameterType.DOUBLE, 0.0, 1.0),), (Metric(METRIC, goal),), selection=selection
    )


def trial_spec(*, api: Api = Api.VERTEX, scheduling: Scheduling | None = None, workers: int = 0) -> JobSpec:
    """Return the job of each trial: a primary and this many workers."""
    counts = (1, workers) if workers else (1,)
    pools = tuple(WorkerPool(i, count, MACHINE, program()) for i, count in enumerate(counts))
    spec: dict[str, Any] = {"workerPoolSpecs": [{"pythonPackageSpec": {"args": []}} for _ in pools]}
    return JobSpec(
        api,
        REGION,
        pools,
        scheduling or Scheduling(),
        json.dumps(spec if api is Api.VERTEX else {"hyperparameters": {}}),
        base_output_directory=OUTPUT if api is Api.VERTEX else None,
    )


def tuning(
    number: int = 7000,
    *,
    api: Api = Api.VERTEX,
    trials: int = 6,
    parallel: int = 3,
    failed: int = 0,
    spec: StudySpec | None = None,
    scheduling: Scheduling | None = None,
) -> TuningJob:
    """Return a queued tuning job. `failed` is its maxFailedTrialCount."""
    vertex = api is Api.VERTEX
    name = JobName(
        api,
        PROJECT,
        REGION if vertex else "",
        str(number) if vertex else f"tuning_{number}",
        Collection.TUNING_JOBS if vertex else Collection.CUSTOM_JOBS,
    )
    return TuningJob(
        uid=JobUid(number),
        name=name,
        display_name=f"tuning {number}",
        spec=TuningSpec(
            spec or study_spec(), trial_spec(api=api, scheduling=scheduling), trials, parallel, failed
        ),
        public_json="{}",
        created=CREATED,
        updated=CREATED,
        labels=(("team", "a"),),
    )


def pipeline(number: int = 8000, *, task: Task = Task.CUSTOM, model: str | None = "m") -> Pipeline:
    """Return a pipeline that is not stored yet. `model` is the ID of its model; None: no model."""
    shown = json.dumps({"displayName": model})
    draft = None if model is None else ModelDraft(model, f"model {model}", shown)
    return Pipeline(
        uid=JobUid(number),
        name=JobName(Api.VERTEX, PROJECT, REGION, str(number), Collection.PIPELINES),
        display_name=f"pipeline {number}",
        spec=PipelineSpec(task, OUTPUT, draft),
        public_json="{}",
        created=CREATED,
        updated=CREATED,
    )


def study(number: int = 9000) -> Study:
    """Return a study of the study API."""
    return Study(
        StudyUid(number),
        StudyName(PROJECT, REGION, str(number)),
        f"study {number}",
        study_spec(),
        "{}",
        CREATED,
    )
