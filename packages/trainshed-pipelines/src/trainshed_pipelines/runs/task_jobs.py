"""Creates the job of a task: resolves its program's placeholders, and chooses its machine and its runtime."""

import re
from collections.abc import Mapping
from typing import Any, Final

from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.services import Services
from trainshed.api.resources.submission import new_vertex_job, new_work
from trainshed.core import secrets
from trainshed.core.errors import PermissionDenied
from trainshed.core.lifecycle.records import Parent
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.runtime import RuntimeChoice, RuntimeRefusal, ServiceCatalog
from trainshed.core.specs.tuning import parse_tuning_job
from trainshed.core.specs.vertex import parse_custom_job
from trainshed.store.port import NewWork
from trainshed_pipelines.runs.machine_types import machine_spec
from trainshed_pipelines.template.structures import Container

_PYTHON_IMAGE: Final = re.compile(r"(?:docker\.io/)?(?:library/)?python:(3\.\d+)(?:\.\d+)?(?:-[a-z0-9.-]+)?")
"""The official images of Python. Lightweight components of KFP run in them."""
_MAX_DISPLAY_NAME: Final = 128


class TaskCatalog:
    """The runtimes of tasks (`core.runtime.RuntimeCatalog`). Official images of Python are replaced by plain
    Python environments of the service, because lightweight components need only Python and pip."""

    def __init__(self, catalog: ServiceCatalog) -> None:
        self._catalog = catalog

    def for_image(self, image_uri: str) -> RuntimeChoice | RuntimeRefusal:
        match = _PYTHON_IMAGE.fullmatch(image_uri)
        if match is not None and not self._catalog.is_mapped(image_uri):
            choice = self._catalog.for_family("python", None, match[1])
            if isinstance(choice, RuntimeChoice):
                return choice
        return self._catalog.for_image(image_uri)

    def for_runtime_version(
        self, runtime_version: str, python_version: str
    ) -> RuntimeChoice | RuntimeRefusal:
        return self._catalog.for_runtime_version(runtime_version, python_version)


def job_request(run: PipelineJob, path: str, container: Container) -> dict[str, Any]:
    """Return the custom job of a task in public JSON. `path`: the path of the task in the run. `container`:
    the program, without placeholders. Raises ResourceError."""
    program = {
        "imageUri": container.image,
        "command": list(container.command),
        "args": list(container.args),
        "env": [{"name": name, "value": value} for name, value in container.env],
    }
    pool = {
        "machineSpec": machine_spec(container.resources),
        "replicaCount": "1",
        "containerSpec": {key: value for key, value in program.items() if value},
    }
    spec: dict[str, Any] = {"workerPoolSpecs": [pool]}
    if run.service_account:
        spec["serviceAccount"] = run.service_account
    request: dict[str, Any] = {"displayName": display_name(path), "jobSpec": spec}
    return {**request, "labels": dict(run.labels)} if run.labels else request


def display_name(path: str) -> str:
    """Return the display name of a task's job: the path of the task, without its beginning if it is too
    long."""
    return path if len(path) <= _MAX_DISPLAY_NAME else f"…{path[1 - _MAX_DISPLAY_NAME :]}"


async def new_task_job(
    services: Services, run: PipelineJob, request: Mapping[str, Any], location: LocationName | None = None
) -> NewWork:
    """Return the job of a task, which is not stored yet. `request`: the custom job or tuning job in public
    JSON. `location`: None = that of the pipeline job. Raises RequestError if the job is invalid."""
    _reject_secrets(run, str(request))
    location = location or LocationName(run.name.project_id, run.name.location)
    region, runtimes = location.location, TaskCatalog(services.runtimes)
    if "trialJobSpec" in request:
        most = services.settings.max_study_trials
        draft = parse_tuning_job(request, region=region, runtimes=runtimes, max_trials=most)
    else:
        draft = parse_custom_job(request, region=region, runtimes=runtimes)
    assert run.creator is not None, "each stored pipeline job has a creator"
    parent = Parent(run.uid, run.name)
    work = new_vertex_job(services, location, draft, request, parent)
    return await new_work(services, work, run.creator)


def _reject_secrets(run: PipelineJob, text: str) -> None:
    """Reject secrets in the jobs of a pipeline job that a program has created. Programs may not read secrets
    (`api.calls.impersonation`), and parameters of a pipeline can compose the reference to a secret."""
    if run.creator is None or run.creator.job is None:
        return
    if refs := sorted({ref.name for ref in secrets.references(text)}):
        raise PermissionDenied(
            "The pipeline job was created by a program, and its tasks may not use secrets "
            f"({', '.join(refs)}). Create the pipeline job as a user."
        )
