"""`aiplatform` v1 ModelService, to the extent that training pipelines need it.

Models can be registered, listed, updated, copied and deleted (facts/resources#pipelines). Evaluations of
model versions can be imported (facts/models#evaluations). The service makes no predictions with models.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import Message
from msgspec.structs import asdict, replace

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.kinds import Kind, list_response
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.views import V1, message, reject_encryption_key
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.paging import Listing
from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.resources.operations import finished_operation
from trainshed.api.resources.submission import check_and_parse, compact_json
from trainshed.core.datasets.plans import DirectoryCopy, Export, model_directory_name
from trainshed.core.errors import AlreadyExists, FailedPrecondition, InvalidRequest, NotFound, Violation
from trainshed.core.names import EvaluationName, JobUid, ModelName
from trainshed.core.pipelines import ModelEvaluation, ModelVersion
from trainshed.core.requests import Faults, Section
from trainshed.core.specs.syntax import (
    alias_fault,
    bucket_path_fault,
    check_texts,
    model_id_fault,
    read_display_name,
    read_labels,
)
from trainshed.core.units import Nanos
from trainshed.store.records import Operation, OperationKind
from trainshed.wire import json as wire_json

_SERVICE: Final = f"{V1}.ModelService"
_OUTPUTS: Final = frozenset({"name", "labels", "etag", "versionId", "versionAliases"})
"""Fields of a model's public JSON that the record stores in separate columns."""
_EXPORT_FORMAT: Final = "custom-trained"
"""The only export format: unchanged copies of the model's files (facts/models#export)."""
_DEFAULT_ALIAS: Final = "default"
"""Exactly one version of each model has this alias."""
_MODEL_FIELDS: Final = ("display_name", "description", "labels")
"""Fields of a model that can be updated."""
_VERSION_FIELDS: Final = ("version_description", "labels")
"""Fields of a version that can be updated."""

_LISTING: Final = Listing[ModelVersion](
    "models",
    {"model": lambda record: record.name.model_id, "display_name": lambda record: record.display_name},
    {
        "display_name": lambda record: record.display_name,
        "create_time": lambda record: record.created,
        "update_time": lambda record: record.updated,
    },
    key=lambda record: f"{record.name}@{record.version}",
)


async def upload(call: Call, request: Any) -> Message:
    """Register a new model or a new version of `parent_model`. The artifacts are not copied, so the operation
    finishes at once."""
    parent = known_location(request.parent)
    services = call.services
    reject_encryption_key(request.model, "model")
    public = wire_json.to_public(request.model)
    existing, further = await _parent_model(services, parent, request.parent_model)
    check_and_parse(
        lambda: _check_upload(public, request.model_id, request.parent_model),
        (("model.artifact_uri", public.get("artifactUri", "")),),
        services.buckets,
        further,
        project=parent.project_id,
    )
    uri = public.get("artifactUri", "")
    if uri and await asyncio.to_thread(services.buckets.last_written, uri) == 0:
        missing = f"No object exists at {uri!r}. Copy the model's files there first."
        raise InvalidRequest((Violation("model.artifact_uri", missing),))
    job = await _creating_job(call, parent.project_id, request.model.artifact_uri)

    def version(name: ModelName, number: int) -> ModelVersion:
        return replace(_version(services, name, number, request.model, public), job=job)

    return await _register(services, request, existing, version, "UploadModelResponse")


async def copy(call: Call, request: Any) -> Message:
    """Create a new model or a new version of `parent_model` from an existing version. Neither artifacts nor
    aliases are copied, so the operation finishes at once."""
    parent = known_location(request.parent)
    services = call.services
    existing, further = await _parent_model(services, parent, request.parent_model)
    source, unknown = await _find_version(services, parent.project_id, request.source_model, "source_model")
    faults = Faults()
    for violation in (*unknown, *further):
        faults.add(violation.field, violation.description)
    if request.model_id and (fault := model_id_fault(request.model_id)):
        faults.add("model_id", fault)
    if request.HasField("encryption_spec"):
        faults.add("encryption_spec", "Keys of customers are not supported. Omit the field.")
    faults.refuse()
    assert source is not None
    public = json.loads(source.public_json)
    public["originalModelInfo"] = {"model": f"{source.name}@{source.version}"}

    def version(name: ModelName, number: int) -> ModelVersion:
        now = services.now()
        return replace(
            source,
            name=name,
            version=number,
            public_json=compact_json(public, _OUTPUTS),
            created=now,
            updated=now,
            aliases=_initial_aliases(number),
            pipeline=None,
        )

    return await _register(services, request, existing, version, "CopyModelResponse")


async def get(call: Call, request: Any) -> Message:
    """Return a model version. The name `M` selects the default version. `M@1` or `M@alias` selects a version;
    the returned name then contains the version number (facts/models#versions)."""
    name, version = ModelName.parse(request.name)
    record = await call.services.models.version(name, version)
    return _view(record, versioned=bool(version))


async def update(call: Call, request: Any) -> Message:
    """Change names, descriptions and labels. An update of the model (`M`) changes all of its versions. An
    update of one version (`M@1`) changes only the description and labels of that version."""
    name, version = ModelName.parse(request.model.name, of="model.name")
    # The public API also accepts `M@-` for the model itself.
    version = "" if version == "-" else version
    _check_update(request.update_mask.paths, request.model, version)
    paths, now = request.update_mask.paths, call.services.now()

    def update_versions(chosen: ModelVersion, versions: Sequence[ModelVersion]) -> Iterator[ModelVersion]:
        for record in (chosen,) if version else versions:
            yield _apply_update(record, request.model, paths, now)

    return _view(await call.services.models.change(name, version, update_versions))


async def merge_aliases(call: Call, request: Any) -> Message:
    """Assign aliases to a version, or remove aliases that have a leading `-`. An assigned alias is removed
    from the version that had it before."""
    name, requested = _read_version_name(request.name)
    faults = Faults()
    if not request.version_aliases:
        faults.add("version_aliases", "Specify an alias to add, or one to remove as -ALIAS.")
    aliases = (alias.removeprefix("-") for alias in request.version_aliases)
    _check_aliases(aliases, "version_aliases", faults)
    faults.refuse()
    changes = set(request.version_aliases)
    # An alias that the request both adds and removes stays unchanged.
    added = {alias for alias in changes if not alias.startswith("-") and f"-{alias}" not in changes}
    removed = {alias[1:] for alias in changes if alias.startswith("-") and alias[1:] not in changes}
    now = call.services.now()

    def merge(target: ModelVersion, versions: Sequence[ModelVersion]) -> Iterator[ModelVersion]:
        if _DEFAULT_ALIAS in removed and _DEFAULT_ALIAS in target.aliases:
            raise FailedPrecondition(
                f"The alias {_DEFAULT_ALIAS!r} cannot be removed from {name}@{target.version}, because every "
                "model must have a default version. Add the alias to another version instead."
            )
        for record in versions:
            if record.version == target.version:
                aliases = tuple(sorted((set(record.aliases) | added) - removed))
            else:
                aliases = tuple(alias for alias in record.aliases if alias not in added)
            if set(aliases) != set(record.aliases):
                yield replace(record, aliases=aliases, updated=now)

    return _view(await call.services.models.change(name, requested, merge))


async def delete(call: Call, request: Any) -> Message:
    """Delete a model with all versions. Its artifacts remain in their bucket."""
    name, version = ModelName.parse(request.name)
    if version:
        text = f"{request.name!r} is the name of a version. Use the model's name, or call DeleteModelVersion."
        raise InvalidRequest((Violation("name", text),))
    done = finished_operation(call.services, OperationKind.DELETE, str(name))
    await call.services.models.delete_model(name, done)
    return operations.finished_view(done)


async def delete_version(call: Call, request: Any) -> Message:
    name, requested = _read_version_name(request.name)
    number = (await call.services.models.version(name, requested)).version
    done = finished_operation(call.services, OperationKind.DELETE, f"{name}@{number}")
    await call.services.models.delete_version(name, number, done)
    return operations.finished_view(done)


async def export(call: Call, request: Any) -> Message:
    """Start an export, which copies the files of a version. The operation's metadata contains the directory
    of the copy."""
    name, version = ModelName.parse(request.name)
    services = call.services
    record = await services.models.version(name, version)
    public = wire_json.to_public(request)
    prefix = request.output_config.artifact_destination.output_uri_prefix
    check_and_parse(
        lambda: _check_export(public, record),
        (("output_config.artifact_destination.output_uri_prefix", prefix),),
        services.buckets,
        project=name.project_id,
    )
    target = f"{name}@{record.version}"
    if not record.artifact_uri:
        raise FailedPrecondition(
            f"{target} has no supported export format because it has no artifacts. Upload a version with an "
            "artifactUri."
        )
    if await asyncio.to_thread(services.buckets.last_written, record.artifact_uri) == 0:
        raise FailedPrecondition(
            f"{target} cannot be exported: its files at {record.artifact_uri} no longer exist. Copy them "
            "there again, or upload a new version."
        )
    directory = model_directory_name(record.display_name, services.exports.moment())
    copy = DirectoryCopy(f"{record.artifact_uri.rstrip('/')}/", f"{prefix.rstrip('/')}/{directory}/")
    return await operations.export(services, name, target, Export(name.project_id, copy=copy))


def _check_export(public: Mapping[str, Any], record: ModelVersion) -> None:
    """Check an ExportModelRequest in public JSON. Raises InvalidRequest with all errors."""
    faults = Faults()
    config = Section(public, "", faults).section("outputConfig")
    requested = config.text("exportFormatId")
    if requested and requested != _EXPORT_FORMAT:
        config.fault(
            "exportFormatId", f"The model does not support the format {requested!r}. Use {_EXPORT_FORMAT!r}."
        )
    if config.is_set("imageDestination"):
        config.fault("imageDestination", "Container images are not exported. Set only artifactDestination.")
    destination = config.section("artifactDestination")
    prefix = destination.text("outputUriPrefix")
    fault = bucket_path_fault(prefix) if prefix else "Set a gs:// directory for the copy."
    files = record.artifact_uri.rstrip("/")
    if not fault and files and f"{prefix.rstrip('/')}/".startswith(f"{files}/"):
        fault = f"{prefix!r} is inside the directory of the model ({files}). Use another directory."
    if fault:
        destination.fault("outputUriPrefix", fault)
    faults.refuse()


async def list_models(call: Call, request: Any) -> Message:
    """List the default version of each model in the order of `order_by`. Default: newest model first."""
    parent = known_location(request.parent)
    models = await call.services.models.models(parent.project_id, parent.location)
    page, token = await _LISTING.page_of(models, request, str(parent))
    return message("ListModelsResponse", models=map(_view, page), next_page_token=token)


async def list_versions(call: Call, request: Any) -> Message:
    """List the versions of a model in the order of `order_by`. Default: oldest version first."""
    name, _ = ModelName.parse(request.name)
    newest_first = await call.services.models.versions(name)
    page, token = await _LISTING.page_of(newest_first[::-1], request, str(name))
    shown = [_view(record, versioned=True) for record in page]
    return message("ListModelVersionsResponse", models=shown, next_page_token=token)


async def _register(
    services: Services,
    request: Any,
    existing: ModelName | None,
    version: Callable[[ModelName, int], ModelVersion],
    response_name: str,
) -> Message:
    """Store the next version of a new or existing model, with its finished operation.

    `existing`: the existing model; None = a new model. `response_name`: the name of the response message.
    Raises AlreadyExists if the new model's ID is in use.
    """
    parent = known_location(request.parent)
    new_id = request.model_id or str(services.new_uid())
    name = existing or ModelName(parent.project_id, parent.location, new_id)

    def new_version(number: int) -> tuple[ModelVersion, Operation]:
        response = message(response_name, model=str(name), model_version_id=str(number))
        done = finished_operation(services, OperationKind.CREATE, str(name), response)
        return version(name, number), done

    try:
        done = await services.models.register(name, new_version, is_new=existing is None)
    except AlreadyExists:
        raise AlreadyExists(
            f"{name} already exists. Use another modelId, or set parentModel to the model to create a new "
            "version."
        ) from None
    return operations.finished_view(done)


async def _find_version(
    services: Services, project: str, text: str, field: str
) -> tuple[ModelVersion | None, tuple[Violation, ...]]:
    """Return the model version that a field specifies (None = not found), and the violations of the field.
    The model must be in the project."""
    try:
        name, version = ModelName.parse(text, of=field)
        existing = await services.models.version(name, version)
    except InvalidRequest as refused:
        return None, refused.violations
    except NotFound as missing:
        return None, (Violation(field, f"{missing}."),)
    if name.project_id != project:
        return None, (
            Violation(
                field, f"{name} does not belong to the project {project}. Use a model of this project."
            ),
        )
    return existing, ()


async def _parent_model(
    services: Services, parent: LocationName, text: str
) -> tuple[ModelName | None, tuple[Violation, ...]]:
    """Return the parent model of a new version (None = a new model), and the violations of its name."""
    if not text:
        return None, ()
    version, faults = await _find_version(services, parent.project_id, text, "parent_model")
    if version is None or version.name.location == parent.location:
        return version and version.name, faults
    return None, (
        Violation("parent_model", f"{version.name} is not in {parent}. Use a model of this location."),
    )


async def _creating_job(call: Call, project: str, uri: str) -> str | None:
    """Return the name of the job that has created the artifacts at `uri`.

    This is the job whose output directory contains the artifacts, or else the job whose program makes this
    call. Returns None if there is no such job.
    """
    reader = call.services.reader
    uid = await reader.job_of_output(project, uri) if uri else None
    if uid is None and call.principal.program is not None:
        uid = JobUid(call.principal.program.job_uid)
    if uid is None:
        return None
    try:
        return str((await reader.job_by_uid(uid))[0].name)
    except NotFound:
        return None


def _version(
    services: Services, name: ModelName, number: int, model: Any, public: dict[str, Any]
) -> ModelVersion:
    now = services.now()
    return ModelVersion(
        name=name,
        version=number,
        display_name=model.display_name,
        public_json=compact_json(public, _OUTPUTS),
        artifact_uri=model.artifact_uri,
        created=now,
        updated=now,
        aliases=tuple(dict.fromkeys((*model.version_aliases, *_initial_aliases(number)))),
        labels=tuple(public.get("labels", {}).items()),
    )


def _initial_aliases(number: int) -> tuple[str, ...]:
    """Return the aliases of a new version. The first version of a model is the default version."""
    return (_DEFAULT_ALIAS,) if number == 1 else ()


def _apply_update(record: ModelVersion, model: Any, paths: Iterable[str], now: Nanos) -> ModelVersion:
    public = json.loads(record.public_json)
    for path in paths:
        match path:
            case "display_name":
                record = replace(record, display_name=model.display_name)
                public["displayName"] = model.display_name
            case "labels":
                record = replace(record, labels=tuple(sorted(model.labels.items())))
            case "description":
                public["description"] = model.description
            case _:
                public["versionDescription"] = model.version_description
    return replace(record, public_json=compact_json(public, _OUTPUTS), updated=now)


def _read_version_name(text: str) -> tuple[ModelName, str]:
    """Return the name of a model, and the version or alias after `@`, which is required. Raises
    InvalidRequest."""
    name, version = ModelName.parse(text)
    if not version:
        wrong = f"{text!r} contains no version. Append @VERSION or @ALIAS."
        raise InvalidRequest((Violation("name", wrong),))
    return name, version


def _check_upload(public: Mapping[str, Any], model_id: str, parent_model: str) -> None:
    """Check the public JSON of a Model. Raises InvalidRequest with all errors."""
    faults = Faults()
    model = Section(public, "model", faults)
    read_display_name(model)
    read_labels(model)
    artifacts = model.text("artifactUri")
    if artifacts and (fault := bucket_path_fault(artifacts)):
        model.fault("artifactUri", fault)
    if model.has("containerSpec") and not model.section("containerSpec").text("imageUri"):
        model.section("containerSpec").fault("imageUri", "The serving image must be set.")
    _check_aliases(model.texts("versionAliases"), model.path_of("versionAliases"), faults)
    if model_id and (fault := model_id_fault(model_id)):
        faults.add("model_id", fault)
    if model_id and parent_model and parent_model.rpartition("/")[2] != model_id:
        faults.add("model_id", "A new version has the ID of its parent_model. Omit model_id.")
    faults.refuse()


def _check_update(paths: Iterable[str], model: Any, version: str) -> None:
    """Check an update mask and the updated fields. `version`: "" = the update is for the model itself. Raises
    InvalidRequest with all errors."""
    fields = tuple(paths)
    allowed = _VERSION_FIELDS if version else _MODEL_FIELDS
    faults = Faults()
    if not fields:
        faults.add("update_mask", f"The update mask is empty. Set some of {', '.join(allowed)}.")
    if wrong := [path for path in fields if path not in allowed]:
        target_text = "one version of a model" if version else "a model"
        faults.add(
            "update_mask",
            f"{', '.join(wrong)} cannot be updated for {target_text}. Use {', '.join(allowed)}.",
        )
    section = Section({"displayName": model.display_name, "labels": dict(model.labels)}, "model", faults)
    if "display_name" in fields:
        read_display_name(section)
    if "labels" in fields:
        read_labels(section)
    faults.refuse()


def _check_aliases(aliases: Iterable[str], path: str, faults: Faults) -> None:
    for index, alias in enumerate(aliases):
        if fault := alias_fault(alias):
            faults.add(f"{path}[{index}]", fault)


def _view(record: ModelVersion, *, versioned: bool = False) -> Message:
    """Return the Model message of one version.

    The message's `metadata` contains the name of the job that created the model, unless the upload contained
    other metadata. `versioned`: whether the model name in the message contains the version, as in lists of
    versions.
    """
    view: Any = wire_json.from_public(f"{V1}.Model", json.loads(record.public_json))
    view.name = f"{record.name}@{record.version}" if versioned else str(record.name)
    view.version_id = str(record.version)
    view.display_name = record.display_name
    view.artifact_uri = record.artifact_uri
    view.training_pipeline = record.pipeline or ""
    if record.job and not view.HasField("metadata"):
        view.metadata.struct_value["job"] = record.job
    del view.version_aliases[:]
    view.version_aliases.extend(record.aliases)
    view.model_source_info.source_type = "CUSTOM"
    view.model_source_info.copy = bool(view.original_model_info.model)
    del view.supported_export_formats[:]
    if record.artifact_uri:
        view.supported_export_formats.add(id=_EXPORT_FORMAT, exportable_contents=["ARTIFACT"])
    for created in (view.create_time, view.version_create_time):
        set_micros(created, record.created)
    for updated in (view.update_time, view.version_update_time):
        set_micros(updated, record.updated)
    view.labels.clear()
    view.labels.update(dict(record.labels))
    return view


async def import_evaluation(call: Call, request: Any) -> Message:
    """Import an evaluation of the version in `parent`, or of the default version if `parent` contains no
    version."""
    model, version = ModelName.parse(request.parent, of="parent")
    sent = request.model_evaluation
    public, faults = wire_json.to_public(sent), Faults()
    check_texts(Section(public, "model_evaluation", faults), "displayName")
    faults.refuse()
    services = call.services
    evaluation = ModelEvaluation(
        name=EvaluationName(model, services.new_uid()),
        version=(await services.models.version(model, version)).version,
        public_json=compact_json(public, ("name", "createTime")),
        created=services.now(),
    )
    return _evaluation_view(services, await services.evaluations.create(evaluation))


async def list_evaluations(call: Call, request: Any) -> Message:
    """List the evaluations of one version, newest evaluation first."""
    model, version = ModelName.parse(request.parent, of="parent")
    if request.filter:
        text = "Evaluations cannot be filtered. Omit the filter and select from the full list."
        raise InvalidRequest((Violation("filter", text),))
    services = call.services
    number = (await services.models.version(model, version)).version
    below = asdict(model) | {"version": number}
    evaluations = await services.evaluations.list(below)
    page, token = await _EVALUATIONS.listing.page_of(evaluations, request, f"{model}@{number}")
    # Conversion runs in a thread, because each evaluation may be large.
    views = await asyncio.to_thread(lambda: [_evaluation_view(services, evaluation) for evaluation in page])
    return list_response("List", "ModelEvaluations", views, token)


def _evaluation_view(services: Services, record: ModelEvaluation) -> Message:
    view: Any = wire_json.from_public(f"{V1}.ModelEvaluation", json.loads(record.public_json))
    view.name = str(record.name)
    set_micros(view.create_time, record.created)
    return view


_EVALUATIONS: Final = Kind(
    "ModelService",
    "ModelEvaluation",
    EvaluationName.parse,
    lambda services: services.evaluations,
    _evaluation_view,
    Listing("evaluations", {}, {}, page=50),
)
HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.UploadModel": upload,
    f"{_SERVICE}.CopyModel": copy,
    f"{_SERVICE}.GetModel": get,
    f"{_SERVICE}.ListModels": list_models,
    f"{_SERVICE}.ListModelVersions": list_versions,
    f"{_SERVICE}.UpdateModel": update,
    f"{_SERVICE}.MergeVersionAliases": merge_aliases,
    f"{_SERVICE}.DeleteModel": delete,
    f"{_SERVICE}.DeleteModelVersion": delete_version,
    f"{_SERVICE}.ExportModel": export,
    f"{_SERVICE}.ImportModelEvaluation": import_evaluation,
    f"{_SERVICE}.GetModelEvaluation": _EVALUATIONS.get,
    f"{_SERVICE}.ListModelEvaluations": list_evaluations,
}
