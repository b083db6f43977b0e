"""`aiplatform` v1 PipelineService: trainingPipelines
(facts/resources#pipelines). PipelineJobs, which run pipelines of another kind, are not served.

Clients send the inputs of a task as any JSON: mixed spellings, whole numbers as floats, numbers for texts,
nulls (spec/clients#task-inputs). They are read as the public message that they stand for, and unknown fields
are refused.
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
    checked,
    kept_json,
    new_vertex_job,
    store_works,
)
from trainshed.core.datasets.records import Dataset, DatasetName
from trainshed.core.errors import AlreadyExists, InvalidRequest, NotFound, Violation
from trainshed.core.lifecycle.records import Job, Parent
from trainshed.core.names import Api, Collection, JobName, JobUid, ModelName
from trainshed.core.pipelines import Pipeline, Task, created
from trainshed.core.requests import snake_case
from trainshed.core.specs.input_data import dataset_id_fault
from trainshed.core.specs.pipeline import DEFINITIONS, ParsedPipeline, parse_pipeline
from trainshed.core.tuning.records import TuningJob, TuningSpec
from trainshed.core.tuning.trial_jobs import printed
from trainshed.core.units import Nanos
from trainshed.wire import json as wire_json
from trainshed.wire import plans

FIELD: Final = "training_task_inputs"
_MESSAGES: Final[Mapping[Task, str]] = {
    Task.CUSTOM: "CustomJobSpec",
    Task.TUNING: "HyperparameterTuningJob",
}
_TUNING_FIELDS: Final = frozenset(
    {
        "study_spec",
        "trial_job_spec",
        "max_trial_count",
        "parallel_trial_count",
        "max_failed_trial_count",
    }
)
"""The fields of a tuning job that the tuning task takes (facts/resources#tuning-jobs)."""
_TRIAL: Final = f"{FIELD}.trial_job_spec"


class Asked(Struct, frozen=True):
    """A pipeline to create: what it is, its public JSON, and its task's inputs."""

    parsed: ParsedPipeline
    public: dict[str, Any]
    inputs: dict[str, Any]
    #: When it is made (ns); also part of the name of the directory that its dataset is written to.
    at: Nanos


def check_create(
    call: Call,
    request: Any,
    uid: JobUid = JobUid(0),
    further: tuple[Violation, ...] = (),
    dataset: Dataset | None = None,
) -> Asked:
    """Return the pipeline to create. `uid`: its own, which names its model unless the request does;
    `dataset`: the one that it reads. Raises InvalidRequest with all faults, including those in `further`."""
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
            # Without what only follows from inputs that could not be read.
            fields = tuple(violation.field for violation in unreadable)
            own = tuple(
                v
                for v in invalid.violations
                if not any(is_within(v.field, path) for path in fields)
            )
            raise InvalidRequest(own) from None

    uses = (*_bucket_uses(public), *job_service.bucket_uses(*_program_of(inputs)))
    faults = (*unreadable, *further)
    parsed = checked(parse_readable, uses, services.buckets, faults, project=parent.project_id)
    return Asked(parsed, public, inputs, now)


async def asked_for(call: Call, request: Any, uid: JobUid) -> Asked:
    """Return the pipeline to create, after all checks, including those that need the store. Raises
    InvalidRequest, AlreadyExists."""
    dataset, missing = await _dataset(call.services, request)
    spec, path = _program_of(read_inputs(request.training_pipeline)[0])
    place = known_location(request.parent)
    further = (
        *missing,
        *await job_service.unknown_references(call.services, place, spec, path),
        *await _unfit_parent_model(call.services, request.training_pipeline, request.parent),
    )
    draft = check_create(call, request, uid, further, dataset)
    await _require_new_model(call.services, place, draft.parsed)
    return draft


async def create(call: Call, request: Any) -> Message:
    services = call.services
    uid = services.new_uid()
    draft = await asked_for(call, request, uid)
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
    services: Services, parent: LocationName, uid: JobUid, draft: Asked
) -> tuple[Pipeline, Job | TuningJob]:
    """Return the records of the pipeline and of the job that does its work; nothing is stored."""
    parsed, now = draft.parsed, draft.at
    name = JobName(Api.VERTEX, parent.project_id, parent.location, str(uid), Collection.PIPELINES)
    sent_inputs = {"jobSpec": draft.inputs} if parsed.spec.task is Task.CUSTOM else draft.inputs
    spec = parsed.job.spec
    data = (spec.trial if isinstance(spec, TuningSpec) else spec).data
    if data is not None:
        # Who submits the job anew has its variables, and so the files that were written for it.
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
        public_json=kept_json(draft.public),
        created=now,
        updated=now,
        labels=parsed.labels,
    )
    # Both are stored at once, so that the job exists from the first moment.
    return created(pipeline, job), job


def _program_of(inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the CustomJobSpec that a task runs, with its path."""
    trial = inputs.get("trialJobSpec")
    return (inputs, FIELD) if trial is None else (trial, _TRIAL)


async def _dataset(
    services: Services, request: Any
) -> tuple[Dataset | None, tuple[Violation, ...]]:
    """Return the dataset that the request names (None: it names none that exists), and its faults. An invalid
    id is reported by the specification's check."""
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
            f"{name} does not exist; a dataset is named by its id alone, and lies in the project and the "
            "location of the pipeline."
        )
        return None, (Violation(field, text),)
    try:
        await require_files(
            services,
            parent.project_id,
            tuple((field, uri) for files in dataset.files for uri in files.uris),
        )
    except InvalidRequest as missing:
        return dataset, missing.violations
    return dataset, ()


async def _unfit_parent_model(
    services: Services, pipeline: Any, place: str
) -> tuple[Violation, ...]:
    """Return a violation if a new version is to be made of a model that does not exist, or is not in the
    pipeline's project. An invalid name, and another location, are reported by the specification's check."""
    try:
        model, _ = ModelName.parse(pipeline.parent_model)
        if place.split("/")[1:2] != [model.project_id]:
            # Whether that project has the model must not be told either.
            text = f"{model} lies in another project than the pipeline."
            return (Violation("parent_model", text),)
        await services.models.version(model, "")
    except InvalidRequest:
        return ()
    except NotFound as error:
        return (Violation("parent_model", str(error)),)
    return ()


async def _require_new_model(
    services: Services, parent: LocationName, parsed: ParsedPipeline
) -> None:
    """Raise AlreadyExists if the new model's id is taken, now rather than when the training is over."""
    draft = parsed.spec.model
    if draft is None or draft.is_new_version:
        return
    name = ModelName(parent.project_id, parent.location, draft.model_id)
    try:
        await services.models.version(name, "")
    except NotFound:
        return
    raise AlreadyExists(
        f"{name} exists already; give the pipeline another modelId, or name the model as its parentModel "
        "to make a new version of it."
    )


def _bucket_uses(public: Mapping[str, Any]) -> Iterator[BucketUse]:
    yield "model_to_upload.artifact_uri", public.get("modelToUpload", {}).get("artifactUri", "")
    destination = public.get("inputDataConfig", {}).get("gcsDestination", {})
    yield (
        "input_data_config.gcs_destination.output_uri_prefix",
        destination.get("outputUriPrefix", ""),
    )


def read_inputs(pipeline: Any) -> tuple[dict[str, Any], tuple[Violation, ...]]:
    """Return the inputs of a pipeline's task in public JSON, as far as they can be read ({}: the task is not
    known), and the faults of what cannot be read."""
    inputs: Any = wire_json.to_public(pipeline.training_task_inputs)
    task = DEFINITIONS.get(pipeline.training_task_definition.rpartition("/")[2])
    if task is None or inputs is None:
        return {}, ()
    inputs_message = message(_MESSAGES[task])
    known, unknown = _split(task, inputs)
    # The SDK lets arguments be numbers, and sends 10, which was meant as `10`, as 10.0.
    walk = wire_json.Walk(keep_output_only=False, number_to_text=printed)
    walk.message(plans.plan_for(inputs_message), known, inputs_message, FIELD)
    refused = tuple(Violation(v.field, v.description) for v in walk.violations)
    return wire_json.to_public(inputs_message), (*unknown, *refused)


def _split(task: Task, inputs: Any) -> tuple[Any, tuple[Violation, ...]]:
    """Return the inputs without the message's fields that the task does not take, and violations for
    these."""
    if task is Task.CUSTOM or not isinstance(inputs, dict):
        return inputs, ()
    members = cast("dict[str, Any]", inputs)
    unknown = [name for name in members if snake_case(name) not in _TUNING_FIELDS]
    return {name: members[name] for name in members if name not in unknown}, tuple(
        Violation(
            f"{FIELD}.{name}",
            f"Unknown name {name!r} at {FIELD!r}: Cannot find field. The tuning task has: "
            f"{', '.join(sorted(_TUNING_FIELDS))}.",
        )
        for name in unknown
    )
