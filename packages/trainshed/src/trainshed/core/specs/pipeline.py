"""Converts a TrainingPipeline in public JSON to a `PipelineSpec` and its job, or to a list of all its errors.

Rules: facts/resources#tuning-jobs, facts/program#variables, facts/packaging#measured. The custom task and the
tuning task are supported. This module parses the description of the model. The API and the controller check
whether a parent model exists.
"""

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from trainshed.core.datasets.records import Dataset
from trainshed.core.errors import InvalidRequest
from trainshed.core.job import JobDraft, JobSpec
from trainshed.core.names import ModelName
from trainshed.core.pipelines import ModelDraft, PipelineSpec, Task
from trainshed.core.requests import Faults, Section
from trainshed.core.runtime import RuntimeCatalog
from trainshed.core.specs import syntax
from trainshed.core.specs.input_data import read_data
from trainshed.core.specs.tuning import read_tuning_spec
from trainshed.core.specs.vertex import read_job_spec, unsupported_fields, with_warnings
from trainshed.core.tuning.records import TuningSpec
from trainshed.core.units import Nanos

DEFINITIONS = {"custom_task_1.0.0.yaml": Task.CUSTOM, "hyperparameter_tuning_task_1.0.0.yaml": Task.TUNING}
"""Tasks by the last part of their definition's URI."""
_DIRECTORY = "gs://google-cloud-aiplatform/schema/trainingjob/definition/"
_CHILD = {Task.CUSTOM: "-custom-job", Task.TUNING: "-hyperparameter-tuning-job"}


class ParsedPipeline(JobDraft[PipelineSpec], frozen=True):
    """A valid training pipeline. `job`: the backing job, whose display name and labels come from the
    pipeline."""

    job: JobDraft[JobSpec | TuningSpec]


def parse_pipeline(
    public: Mapping[str, Any],
    inputs: Mapping[str, Any],
    *,
    region: str,
    runtimes: RuntimeCatalog,
    max_trials: int,
    new_id: str,
    dataset: Dataset | None,
    at: Nanos,
) -> ParsedPipeline:
    """Parse a TrainingPipeline.

    `public` is its public JSON, whose trainingTaskInputs are ignored. `inputs` contains those inputs in
    public JSON: a CustomJobSpec, or the study, trial job and counts of a tuning job. `region` is the
    request's region. `max_trials` is the limit of one tuning job, 0 for no limit. `new_id` is the id for a
    model without an id in the request. `dataset` is the dataset of the request, or None if not set or
    unknown. `at` is the creation time of the pipeline (ns). Raise InvalidRequest with all violations.
    """
    pipeline = Section(public, "", Faults())
    display_name = syntax.read_display_name(pipeline)
    labels = syntax.read_labels(pipeline)
    task = _read_task(pipeline)
    data = read_data(pipeline, dataset, at)
    section = Section(inputs, "training_task_inputs", pipeline.faults)
    job: JobSpec | None = None
    tuning = None
    if task is Task.TUNING:
        tuning = read_tuning_spec(section, region=region, runtimes=runtimes, max_trials=max_trials)
        job = tuning.trial
    elif task is Task.CUSTOM:
        job = read_job_spec(section, region, runtimes)
    output = job.base_output_directory if job is not None else None
    model = _read_model(pipeline, region, new_id, is_placed=bool(output) or task is None)
    pipeline.faults.refuse()
    assert task is not None and job is not None, "an unknown task is a fault"
    if data is not None:
        # A program's own variables may override the variables for its data.
        pools = tuple(
            replace(pool, program=replace(pool.program, env=(*data.env, *pool.program.env)))
            for pool in job.pools
        )
        job = replace(job, pools=pools, data=data)
    model_keys = unsupported_fields(pipeline.section("modelToUpload"))
    job = with_warnings(job, *unsupported_fields(pipeline), *model_keys, *_ineffective_fields(pipeline))
    ending = _CHILD[task]
    name = display_name[: syntax.MAX_DISPLAY_NAME - len(ending)] + ending
    return ParsedPipeline(
        spec=PipelineSpec(task, output, model),
        display_name=display_name,
        labels=labels,
        job=JobDraft(job if tuning is None else replace(tuning, trial=job), name, labels),
    )


def _read_task(pipeline: Section) -> Task | None:
    uri = pipeline.text("trainingTaskDefinition")
    task = DEFINITIONS.get(uri.rpartition("/")[2])
    if task is None:
        problem = f"The task {uri!r} is not served" if uri else f"The task {uri!r} is not supported"
        pipeline.fault(
            "trainingTaskDefinition",
            f"{problem}. Choose {' or '.join(_DIRECTORY + name for name in DEFINITIONS)}. "
            "This service has no AutoML and no other tasks of the public service.",
        )
    return task


def _ineffective_fields(pipeline: Section) -> tuple[str, ...]:
    """Return warnings about a model ID or parent model without a model to upload. They are not errors,
    because the SDK always sends these fields."""
    if pipeline.has("modelToUpload"):
        return ()
    return tuple(
        f"{pipeline.path_of(name)} has no effect without model_to_upload."
        for name in ("modelId", "parentModel")
        if pipeline.is_set(name)
    )


def _read_model(pipeline: Section, region: str, new_id: str, *, is_placed: bool) -> ModelDraft | None:
    """Parse `modelToUpload` with its model ID or parent model. `is_placed`: whether the job has an output
    directory."""
    if not pipeline.has("modelToUpload"):
        return None
    model = pipeline.section("modelToUpload")
    display_name = syntax.read_display_name(model)
    artifacts = model.text("artifactUri")
    if artifacts and (fault := syntax.bucket_path_fault(artifacts)):
        model.fault("artifactUri", fault)
    elif not artifacts and not is_placed:
        model.fault(
            "artifactUri",
            "The location of the model is not set. Set base_output_directory in the task's "
            "inputs, or an artifact_uri.",
        )
    if model.has("containerSpec") and not model.section("containerSpec").text("imageUri"):
        model.section("containerSpec").fault("imageUri", "The serving image must be set.")
    model_id, is_new_version = _read_model_id(pipeline, region, new_id)
    return ModelDraft(
        model_id=model_id,
        display_name=display_name,
        public_json=json.dumps(model.values, ensure_ascii=False, separators=(",", ":")),
        artifact_uri=artifacts or None,
        is_new_version=is_new_version,
        aliases=syntax.read_distinct(model, "versionAliases", "alias", syntax.alias_fault),
        labels=syntax.read_labels(model),
    )


def _read_model_id(pipeline: Section, region: str, new_id: str) -> tuple[str, bool]:
    """Parse the id of the model, and whether the request adds a version to an existing model."""
    own_id, parent = pipeline.text("modelId"), pipeline.text("parentModel")
    pipeline.check("modelId", syntax.model_id_fault(own_id) if own_id else None)
    if not parent:
        return own_id or new_id, False
    if own_id:
        pipeline.fault("modelId", "A new version has the id of its parent_model. Omit model_id.")
    try:
        name, version = ModelName.parse(parent)
    except InvalidRequest as wrong:
        pipeline.fault("parentModel", wrong.violations[0].description)
        return new_id, True
    if name.location != region:
        pipeline.fault(
            "parentModel",
            f"The model is in {name.location}, and the pipeline in {region}. Both must be "
            "in the same region.",
        )
    elif version:
        pipeline.fault(
            "parentModel",
            f"{parent!r} contains a version. Use the name of the model without it: {str(name)!r}.",
        )
    return name.model_id, True
