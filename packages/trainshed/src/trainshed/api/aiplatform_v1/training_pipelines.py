"""`aiplatform` v1 PipelineService: trainingPipelines (facts/resources#pipelines). PipelineJobs are not
supported.

Clients send the inputs of a task as JSON without a fixed schema. They mix spellings, and send whole numbers
as floats, numbers instead of strings, and nulls (spec/clients#task-inputs). This module converts the inputs
to the corresponding public message. It rejects unknown fields.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from google.protobuf.message import Message
from msgspec import Struct

from trainshed.api.aiplatform_v1 import job_service, views
from trainshed.api.aiplatform_v1.datasets import require_files
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.views import V1, message
from trainshed.api.calls.call import Call, Handlers, public_field
from trainshed.api.calls.checks import is_within
from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.registry import Checks
from trainshed.api.calls.services import Services
from trainshed.api.filters.jobs import JobTest
from trainshed.api.filters.matching import text_test
from trainshed.api.filters.syntax import Comparison
from trainshed.api.resources.submission import (
    BucketUse,
    check_and_parse,
    compact_json,
    new_vertex_job,
    store_works,
)
from trainshed.core.datasets.records import Dataset, DatasetName
from trainshed.core.errors import AlreadyExists, InvalidRequest, NotFound, Violation
from trainshed.core.lifecycle.records import Job, Parent
from trainshed.core.names import Api, Collection, JobName, JobUid, ModelName
from trainshed.core.pipelines import Pipeline, Task, create_pipeline
from trainshed.core.requests import snake_case
from trainshed.core.specs.input_data import dataset_id_fault
from trainshed.core.specs.pipeline import DEFINITIONS, ParsedPipeline, parse_pipeline
from trainshed.core.tuning.records import TuningJob, TuningSpec
from trainshed.core.tuning.trial_jobs import format_argument
from trainshed.core.units import Nanos
from trainshed.wire import json as wire_json
from trainshed.wire import plans

INPUTS_FIELD: Final = "training_task_inputs"
_MESSAGES: Final[Mapping[Task, str]] = {Task.CUSTOM: "CustomJobSpec", Task.TUNING: "HyperparameterTuningJob"}
_TUNING_FIELDS: Final = frozenset(
    {"study_spec", "trial_job_spec", "max_trial_count", "parallel_trial_count", "max_failed_trial_count"}
)
"""Fields of a HyperparameterTuningJob that the tuning task accepts (facts/resources#tuning-jobs)."""
_TRIAL: Final = f"{INPUTS_FIELD}.trial_job_spec"


class PipelineRequest(Struct, frozen=True):
    """A pipeline to create: its parsed specification, the pipeline in the request as public JSON, and the
    readable inputs of its task."""

    pipeline: ParsedPipeline
    public: dict[str, Any]
    inputs: dict[str, Any]
    #: Creation time (ns). It is part of the name of the directory for the dataset's files.
    created_at: Nanos


def check_create(
    call: Call,
    request: Any,
    uid: JobUid = JobUid(0),
    further: tuple[Violation, ...] = (),
    dataset: Dataset | None = None,
) -> PipelineRequest:
    """Return the pipeline to create.

    `uid`: the UID of the pipeline, which is also the default ID of its model. `further`: errors to report
    together with all others. `dataset`: the dataset of the pipeline. Raises InvalidRequest with all errors.
    """
    parent = known_location(request.parent)
    services = call.services
    now = services.now()
    pipeline = request.training_pipeline
    inputs, unreadable = read_inputs(pipeline)
    public = public_field(call, request, "training_pipeline")

    def parse() -> ParsedPipeline:
        return parse_pipeline(
            public,
            inputs,
            region=parent.location,
            runtimes=services.runtimes,
            max_trials=services.settings.max_study_trials,
            new_id=str(uid),
            dataset=dataset,
            at=now,
        )

    def parse_readable() -> ParsedPipeline:
        try:
            return parse()
        except InvalidRequest as invalid:
            # Omit violations that result only from unreadable inputs.
            fields = tuple(violation.field for violation in unreadable)
            own = tuple(v for v in invalid.violations if not any(is_within(v.field, path) for path in fields))
            raise InvalidRequest(own) from None

    uses = (*_bucket_uses(public), *job_service.bucket_uses(*_program_of(inputs)))
    faults = (*unreadable, *further)
    parsed = check_and_parse(parse_readable, uses, services.buckets, faults, project=parent.project_id)
    return PipelineRequest(parsed, public, inputs, now)


async def requested_pipeline(call: Call, request: Any, uid: JobUid) -> PipelineRequest:
    """Return the pipeline to create after all checks, including checks that read the store. Raises
    InvalidRequest and AlreadyExists."""
    dataset, missing = await _find_dataset(call.services, request)
    spec, path = _program_of(read_inputs(request.training_pipeline)[0])
    location = known_location(request.parent)
    further = (
        *missing,
        *await job_service.missing_reference_violations(call.services, location, spec, path),
        *await _parent_model_violations(call.services, request.training_pipeline, request.parent),
    )
    draft = check_create(call, request, uid, further, dataset)
    await _require_new_model(call.services, location, draft.pipeline)
    return draft


async def create(call: Call, request: Any) -> Message:
    services = call.services
    uid = services.new_uid()
    draft = await requested_pipeline(call, request, uid)
    pipeline, job = _new(services, known_location(request.parent), uid, draft)
    await store_works(services, call.principal, pipeline, job)
    return views.training_pipeline(pipeline)


async def _view(call: Call, pipeline: Pipeline, in_list: bool) -> Message:
    return views.training_pipeline(pipeline)


def _by_definition(leaf: Comparison) -> JobTest:
    test = text_test(leaf)
    return lambda work: isinstance(work, Pipeline) and test(views.definition(work))


_KIND: Final = job_service.JobKind(
    "PipelineService",
    Collection.PIPELINES,
    Pipeline,
    _view,
    views.PIPELINE_STATES,
    {"training_task_definition": _by_definition},
)
HANDLERS: Final[Handlers] = job_service.handlers(_KIND, create)
CHECKS: Final[Checks] = {f"{V1}.PipelineService.CreateTrainingPipeline": check_create}


def _new(
    services: Services, parent: LocationName, uid: JobUid, draft: PipelineRequest
) -> tuple[Pipeline, Job | TuningJob]:
    """Return new records of the pipeline and of its job, without storing them."""
    parsed, now = draft.pipeline, draft.created_at
    name = JobName(Api.VERTEX, parent.project_id, parent.location, str(uid), Collection.PIPELINES)
    sent_inputs = {"jobSpec": draft.inputs} if parsed.spec.task is Task.CUSTOM else draft.inputs
    spec = parsed.job.spec
    data = (spec.trial if isinstance(spec, TuningSpec) else spec).data
    if data is not None:
        # Store the variables with the paths of the dataset's files in the job's public JSON. If a user
        # submits the job again, the new job therefore gets the same files.
        for pool in _program_of(draft.inputs)[0].get("workerPoolSpecs", ()):
            program = pool.get("containerSpec") or pool.get("pythonPackageSpec", {})
            own = {row["name"]: row.get("value", "") for row in program.get("env", ())}
            env = dict(data.env) | own
            program["env"] = [{"name": key, "value": value} for key, value in env.items()]
    public = {"displayName": parsed.job.display_name, **sent_inputs}
    job = new_vertex_job(services, parent, parsed.job, public, Parent(uid, name))
    pipeline = Pipeline(
        uid=uid,
        name=name,
        display_name=parsed.display_name,
        spec=parsed.spec,
        public_json=compact_json(draft.public),
        created=now,
        updated=now,
        labels=parsed.labels,
    )
    # The store creates both records together, so a new pipeline always has a job.
    return create_pipeline(pipeline, job), job


def _program_of(inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the CustomJobSpec in the inputs of a task, and its path in the request."""
    trial = inputs.get("trialJobSpec")
    return (inputs, INPUTS_FIELD) if trial is None else (trial, _TRIAL)


async def _find_dataset(services: Services, request: Any) -> tuple[Dataset | None, tuple[Violation, ...]]:
    """Return the dataset of the request (None = it does not exist), and violations. An invalid ID is not a
    violation here, because the check of the specification reports it."""
    dataset_id = request.training_pipeline.input_data_config.dataset_id
    if dataset_id_fault(dataset_id):
        return None, ()
    parent = known_location(request.parent)
    name = DatasetName(parent.project_id, parent.location, dataset_id)
    field = "input_data_config.dataset_id"
    try:
        dataset = await services.datasets.get(name)
    except NotFound:
        text = (
            f"{name} does not exist. Use the ID of a dataset in the project and the location of the pipeline."
        )
        return None, (Violation(field, text),)
    try:
        await require_files(
            services, parent.project_id, tuple((field, uri) for files in dataset.files for uri in files.uris)
        )
    except InvalidRequest as missing:
        return dataset, missing.violations
    return dataset, ()


async def _parent_model_violations(services: Services, pipeline: Any, location: str) -> tuple[Violation, ...]:
    """Return a violation if the parent model of a new version does not exist or is in another project. An
    invalid name or another location is not a violation here, because the check of the specification reports
    it."""
    try:
        model, _ = ModelName.parse(pipeline.parent_model)
        if location.split("/")[1:2] != [model.project_id]:
            # Do not search for this model, because the response must not reveal whether the model exists in
            # the other project.
            text = f"{model} is not in the pipeline's project. Use a model of this project."
            return (Violation("parent_model", text),)
        await services.models.version(model, "")
    except InvalidRequest:
        return ()
    except NotFound as error:
        return (Violation("parent_model", str(error)),)
    return ()


async def _require_new_model(services: Services, parent: LocationName, parsed: ParsedPipeline) -> None:
    """Raise AlreadyExists if the ID of the new model is in use. Without this check, the error would not occur
    until the end of the training."""
    draft = parsed.spec.model
    if draft is None or draft.is_new_version:
        return
    name = ModelName(parent.project_id, parent.location, draft.model_id)
    try:
        await services.models.version(name, "")
    except NotFound:
        return
    raise AlreadyExists(
        f"{name} already exists. Use another modelId, or set parentModel to the model to create a new "
        "version."
    )


def _bucket_uses(public: Mapping[str, Any]) -> Iterator[BucketUse]:
    yield "model_to_upload.artifact_uri", public.get("modelToUpload", {}).get("artifactUri", "")
    destination = public.get("inputDataConfig", {}).get("gcsDestination", {})
    yield ("input_data_config.gcs_destination.output_uri_prefix", destination.get("outputUriPrefix", ""))


def read_inputs(pipeline: Any) -> tuple[dict[str, Any], tuple[Violation, ...]]:
    """Return the readable inputs of a pipeline's task (public JSON), and violations for the unreadable
    inputs. The inputs of an unknown task are {}."""
    inputs: Any = wire_json.to_public(pipeline.training_task_inputs)
    task = DEFINITIONS.get(pipeline.training_task_definition.rpartition("/")[2])
    if task is None or inputs is None:
        return {}, ()
    inputs_message = message(_MESSAGES[task])
    known, unknown = _split_unknown(task, inputs)
    # Convert numbers to texts, because the SDK accepts numbers as arguments and sends 10 as 10.0.
    walk = wire_json.Walk(keep_output_only=False, number_to_text=format_argument)
    walk.message(plans.plan_for(inputs_message), known, inputs_message, INPUTS_FIELD)
    rejected = tuple(Violation(v.field, v.description) for v in walk.violations)
    return wire_json.to_public(inputs_message), (*unknown, *rejected)


def _split_unknown(task: Task, inputs: Any) -> tuple[Any, tuple[Violation, ...]]:
    """Return the inputs without fields that the task does not accept, and violations for those fields."""
    if task is Task.CUSTOM or not isinstance(inputs, dict):
        return inputs, ()
    members = cast("dict[str, Any]", inputs)
    unknown = [name for name in members if snake_case(name) not in _TUNING_FIELDS]
    return {name: members[name] for name in members if name not in unknown}, tuple(
        Violation(
            f"{INPUTS_FIELD}.{name}",
            f"Unknown name {name!r} at {INPUTS_FIELD!r}: Cannot find field. The tuning task has: "
            f"{', '.join(sorted(_TUNING_FIELDS))}.",
        )
        for name in unknown
    )
