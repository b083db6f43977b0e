"""Carries out Google Cloud Pipeline Components in place of their containers: creates their jobs, models and
datasets.

The components act as the service account of their pipeline job, with the rights of a program, as their
containers do in the public service. They use only the project of the pipeline job.

The service may stop after a component has created a resource and before its outputs are stored. The component
is then carried out again. Therefore the names or labels of resources contain the pipeline job and the task.
"""

import contextlib
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from msgspec.structs import replace

from trainshed.access.account_tokens import account_fault
from trainshed.access.permissions import PROGRAM
from trainshed.access.principals import Principal, Rights
from trainshed.api.aiplatform_v1 import datasets, job_service
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.calls.audit import audit_call
from trainshed.api.calls.call import Call
from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.registry import Registry
from trainshed.api.calls.services import Services
from trainshed.api.calls.versions import Version
from trainshed.api.resources.jobs import RESOURCE_NAMES
from trainshed.api.resources.submission import check_and_parse, check_labels
from trainshed.core.datasets.records import DatasetKind, DatasetName
from trainshed.core.environment import service_agent
from trainshed.core.errors import FailedPrecondition, InvalidRequest, NotFound, PermissionDenied
from trainshed.core.names import Collection, JobName, ModelName, normalize_email, project_number
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.requests import snake_case
from trainshed.store.port import NewWork
from trainshed.wire import json as wire_json
from trainshed.wire import routes
from trainshed_pipelines.runs.google_components import (
    Operation,
    method_class,
    operation_of,
    read_flags,
    read_object,
    read_uris,
)
from trainshed_pipelines.runs.records import Artifact, TaskRun
from trainshed_pipelines.runs.task_jobs import new_task_job
from trainshed_pipelines.template.structures import Component, Json

RESOURCES: Final = "gcp_resources"
"""The output parameter that contains the created resource."""
_TASK_LABEL: Final = "trainshed-task"
"""Label of models: the UID of the pipeline job, a dash, and the number of the task."""
_NAME: Final = "resourceName"
JOBS: Final[Mapping[Operation | None, tuple[Collection, str]]] = {
    Operation.CUSTOM_JOB: (Collection.CUSTOM_JOBS, "jobSpec"),
    Operation.TUNING_JOB: (Collection.TUNING_JOBS, "trialJobSpec"),
}
"""The operations that create jobs: the collection of the job, and its field that contains the program."""


def job_resources(job: JobName) -> str:
    """Return the output `gcp_resources` of a component that has created a job."""
    assert job.collection is not None, "components create jobs of Vertex"
    return _resources(RESOURCE_NAMES[job.collection], str(job))


class GoogleComponents:
    """Carries out Google Cloud Pipeline Components. `flags`: their resolved arguments. The methods raise
    RequestError and ValueError for invalid arguments, and Unavailable."""

    def __init__(self, services: Services, registry: Registry) -> None:
        self._services = services
        self._registry = registry

    async def new_job(self, run: PipelineJob, operation: Operation, args: tuple[str, ...]) -> NewWork:
        """Return the job of a training component. The caller stores it."""
        flags, services = read_flags(args), self._services
        location = _location(run, flags)
        collection, key = JOBS[operation]
        path = f"{location}/{collection}"
        _, request = _bind("POST", path, read_object(flags, "payload"))
        public = wire_json.to_public(getattr(request, snake_case(RESOURCE_NAMES[collection])))
        spec, field = public.setdefault(key, {}), snake_case(key)
        _set_account(run, spec)
        if (scheduling := spec.get("scheduling", {})).get("strategy") != "FLEX_START":
            scheduling.pop("maxWaitDuration", None)  # The components always send it.
        public["labels"] = {**dict(run.labels), **public.get("labels", {})}
        check_labels(services, public["labels"].items())
        missing = await job_service.missing_reference_violations(services, location, spec, field)
        uses, project = job_service.bucket_uses(spec, field), location.project_id
        check_and_parse(lambda: None, uses, services.buckets, missing, project=project)
        return await new_task_job(services, run, public, location)

    async def carry_out(
        self, run: PipelineJob, task: TaskRun, component: Component, args: tuple[str, ...]
    ) -> dict[str, Json]:
        """Carry out a component without a job, and return its ExecutorOutput. A repeated call has no effect
        and returns the same artifacts."""
        flags, parameters = read_flags(args), dict[str, Json]()
        match operation_of(component):
            case Operation.UPLOAD_MODEL:
                name, parameters[RESOURCES] = await self._upload_model(run, task, flags)
            case Operation.GET_MODEL:
                path = f"{_location(run, flags)}/models/{flags.get('model_name', '')}"
                ModelName.parse(path, of="model_name")  # Otherwise it may be another resource.
                model = await self._call(run, "GET", path)
                name = f"{model['name'].partition('@')[0]}@{model['versionId']}"
            case _:
                words = method_class(component).lower()
                kind = next(k for k in DatasetKind if words == f"{k.replace('_', '')}dataset")
                name = await self._create_dataset(run, task, kind, flags)
        item = {"artifacts": [{"uri": _uri(name), "metadata": {_NAME: name}}]}
        artifacts = dict.fromkeys(component.output_artifacts, item)
        return {"parameterValues": parameters, "artifacts": artifacts}

    async def exists(self, artifact: Artifact) -> bool:
        """Return whether the model or dataset of an artifact still exists. The result for other artifacts is
        true."""
        name = str(artifact.metadata.get(_NAME, ""))
        try:
            if artifact.type.schema_title == "google.VertexModel":
                await self._services.models.version(*ModelName.parse(name))
            elif artifact.type.schema_title == "google.VertexDataset":
                await self._services.datasets.get(DatasetName.parse(name))
        except (InvalidRequest, NotFound):
            return False
        return True

    async def _upload_model(
        self, run: PipelineJob, task: TaskRun, flags: Mapping[str, str]
    ) -> tuple[str, str]:
        """Register a model version. Return its name and the output `gcp_resources`."""
        location, mark = _location(run, flags), f"{run.uid}-{task.number}"
        path, model = f"{location}/models:upload", read_object(flags, "payload")
        for unmanaged in task.inputs.artifacts.get("unmanaged_container_model", ()):
            model |= {
                "predictSchemata": unmanaged.metadata.get("predictSchemata"),
                "containerSpec": unmanaged.metadata.get("containerSpec"),
                "artifactUri": unmanaged.uri,
            }
        model = wire_json.to_public(_bind("POST", path, {"model": model})[1].model)
        model["labels"] = {**model.get("labels", {}), _TASK_LABEL: mark}
        model["pipelineJob"] = str(run.name)
        parent = flags.get("parent_model_name", "").partition("@")[0]
        # IDs of models begin with a letter.
        new = ModelName(location.project_id, location.location, f"run-{mark}")
        name = ModelName.parse(parent, of="parent_model")[0] if parent else new
        with contextlib.suppress(NotFound):
            for earlier in await self._services.models.versions(name):
                if (_TASK_LABEL, mark) in earlier.labels:
                    version_name = f"{name}@{earlier.version}"
                    # The name of the operation is unknown.
                    return version_name, _resources("Model", version_name)
        target = {"parentModel": parent} if parent else {"modelId": new.model_id}
        done = await self._call(run, "POST", path, {"model": model, **target})
        version_name = f"{done['response']['model']}@{done['response']['modelVersionId']}"
        return version_name, _resources("VertexLro", done["name"])

    async def _create_dataset(
        self, run: PipelineJob, task: TaskRun, kind: DatasetKind, flags: Mapping[str, str]
    ) -> str:
        """Create a dataset together with its files. Return its name."""
        services, location = self._services, _location(run, flags)
        name = DatasetName(location.project_id, location.location, f"{run.uid}-{task.number}")
        with contextlib.suppress(NotFound):
            return str((await services.datasets.get(name)).name)
        uris, key = read_uris(flags.get("gcs_source", "")), flags.get("encryption_spec_key_name")
        dataset: dict[str, Json] = {
            "displayName": flags.get("display_name"),
            "metadataSchemaUri": kind.schema_uri,
            "labels": read_object(flags, "labels"),
            "encryptionSpec": {"kmsKeyName": key} if key else None,
        }
        if kind.is_table:
            table = flags.get("bq_source")
            source = {"bigquerySource": {"uri": table}} if table else {"gcsSource": {"uri": uris}}
            dataset["metadata"] = {"inputConfig": source}
        method, create = _bind("POST", f"{location}/datasets", dataset)
        record = datasets.read_new(create.dataset, name, services.now())
        if uris and not kind.is_table:
            config = {
                "gcsSource": {"uris": uris},
                "importSchemaUri": flags.get("import_schema_uri"),
                "dataItemLabels": read_object(flags, "data_item_labels"),
            }
            _, added = _bind("POST", f"{name}:import", {"importConfigs": [config]})
            files = datasets.read_imports(record, added.import_configs)
            record = replace(record, files=tuple(item for _, item in files))
        uses, project = tuple(("gcs_source", uri) for uri in uris), name.project_id
        await datasets.require_files(services, project, uses)
        principal, target = self._principal(run), str(location)
        store = partial(datasets.KIND.create, Call(principal, services, method), record)
        await audit_call(store, services, principal, method, project=project, resource=target)
        return str(name)

    async def _call(
        self, run: PipelineJob, verb: str, path: str, body: Mapping[str, Json] | None = None
    ) -> dict[str, Any]:
        """Call a method of the public API, and return its response in public JSON."""
        method, request = _bind(verb, path, body)
        call = Call(self._principal(run), self._services, method)
        return wire_json.to_public(await self._registry.answer(call, Version.V1, 0, lambda: request))

    def _principal(self, run: PipelineJob) -> Principal:
        account, project = _account(run), run.name.project_id
        if fault := account_fault(account, None, self._services.access.book):
            raise FailedPrecondition(
                f"The pipeline job runs as the service account {account}, which {fault}. Submit it as "
                "another account."
            )
        return Principal(account, Rights(projects={project: PROGRAM}))


def _account(run: PipelineJob) -> str:
    return run.service_account or service_agent(run.name.project_id)


def _resources(kind: str, name: str) -> str:
    resource = {"resourceType": kind, "resourceUri": _uri(name)}
    return json.dumps({"resources": [resource]}, indent=2)


def _uri(name: str) -> str:
    """Return the address of a resource in the public service, as the components write it."""
    return f"https://{name.split('/')[3]}-aiplatform.googleapis.com/v1/{name}"


def _location(run: PipelineJob, flags: Mapping[str, str]) -> LocationName:
    """Return the location in the arguments. Raises PermissionDenied unless its project is that of the
    pipeline job, and NotFound for an unknown location."""
    own = run.name.project_id
    project = flags.get("project") or own
    if project not in (own, str(project_number(own))):
        raise PermissionDenied(
            f"The component requests the project {project!r}, but the pipeline job is in {own!r}. A "
            "component may use only the project of its pipeline job. Omit its input `project`."
        )
    return known_location(f"projects/{own}/locations/{flags.get('location') or run.name.location}")


def _set_account(run: PipelineJob, spec: dict[str, Any]) -> None:
    """Set the service account of a job to that of the pipeline job. Raises PermissionDenied if the component
    requests another one.

    The creation of the pipeline job has checked only its own service account. The account in a component may
    be part of a text or depend on outputs.
    """
    requested, own = spec.pop("serviceAccount", ""), _account(run)
    if requested and normalize_email(requested) != normalize_email(own):
        raise PermissionDenied(
            f"The component requests the service account {requested}, but the pipeline job runs as {own}. A "
            "component may use only the service account of its pipeline job. Omit its input "
            "`service_account`, or submit the pipeline job with this service account."
        )
    if run.service_account:
        spec["serviceAccount"] = run.service_account


def _bind(verb: str, path: str, body: Mapping[str, Json] | None = None) -> tuple[str, Any]:
    """Return the full name and the request of a method of the public API. Raises ValueError with all invalid
    fields."""
    if (matched := routes.match(verb, f"/v1/{quote(path, safe='/:@')}")) is None:
        raise ValueError(f"{path!r} is not the name of a resource. Check the inputs of the task.")
    route, variables = matched
    request = routes.bind(route, variables, (), json.dumps(body or {}).encode())
    return route.rpc.full_name, request
