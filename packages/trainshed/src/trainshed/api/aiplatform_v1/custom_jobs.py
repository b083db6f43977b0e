"""`aiplatform` v1 JobService: customJobs create, get, list, cancel, delete (facts/resources#custom-jobs)."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import views
from trainshed.api.aiplatform_v1.collections import cancelling, deleting, page_of, unknown_secrets
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.metadata.job_runs import add_job, make_run, unknown_contexts
from trainshed.api.aiplatform_v1.tensorboards.job_boards import unknown_board
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.checks import Checks
from trainshed.api.calls.services import Services
from trainshed.api.filters.jobs import compile_job_filter
from trainshed.api.resources.jobs import (
    of_kind,
    read_vertex_name,
    read_work,
    with_link,
)
from trainshed.api.resources.submission import BucketUse, checked, new_job, store_works
from trainshed.api.resources.web_access import add_to_job
from trainshed.core.errors import Violation
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Api, Collection, JobName
from trainshed.core.specs.vertex import ParsedCustomJob, parse_custom_job
from trainshed.wire import json as wire_json
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.aiplatform.v1.JobService"
_COLLECTION: Final = Collection.CUSTOM_JOBS


def check_create(
    call: Call,
    request: Any,
    further: tuple[Violation, ...] = (),
    public: dict[str, Any] | None = None,
) -> tuple[ParsedCustomJob, dict[str, Any]]:
    """Return the job to create, and the same in public JSON, which the caller may pass. Raises InvalidRequest
    with all faults, including those in `further`."""
    parent = known_location(request.parent)
    if public is None:
        public = wire_json.to_public(request.custom_job)
    parsed = checked(
        lambda: parse_custom_job(public, region=parent.location, runtimes=call.services.runtimes),
        bucket_uses(public.get("jobSpec", {}), "job_spec"),
        call.services.buckets,
        further,
        project=parent.project_id,
    )
    return parsed, public


def new(
    call: Call,
    request: Any,
    further: tuple[Violation, ...] = (),
    public: dict[str, Any] | None = None,
) -> Job:
    """Return the job as `create` stores it; see `check_create`."""
    parsed, public = check_create(call, request, further, public)
    parent = known_location(request.parent)
    uid = call.services.new_uid()
    return new_job(
        call.services,
        uid,
        JobName(Api.VERTEX, parent.project_id, parent.location, str(uid)),
        display_name=parsed.display_name,
        spec=parsed.spec,
        labels=parsed.labels,
        public=public,
    )


async def not_there(
    services: Services, request: Any, public: Mapping[str, Any]
) -> tuple[Violation, ...]:
    """Return violations for what the job to create names and does not exist, which only the store knows.
    `public`: its CustomJobSpec."""
    parent = request.parent
    project = known_location(parent).project_id
    return (
        *await unknown_secrets(services, parent, public, "job_spec"),
        *await unknown_contexts(services, project, public, "job_spec"),
        *await unknown_board(services, parent, public, "job_spec"),
    )


async def create(call: Call, request: Any) -> wire_json.Resource:
    services, spec = call.services, request.custom_job.job_spec
    public = wire_json.to_public(request.custom_job)
    further = await not_there(services, request, public.get("jobSpec", {}))
    if spec.experiment and not spec.experiment_run:
        check_create(call, request, further, public)  # A refused request must not create a run.
        spec.experiment_run = await make_run(services, spec.experiment)
        public = wire_json.to_public(request.custom_job)
    job = new(call, request, further, public)
    await store_works(services, call.principal, job)
    if spec.experiment_run:
        await add_job(services, spec.experiment_run, job.name)
    outputs = views.custom_job_outputs(job)
    return wire_json.Resource(public, outputs, request.custom_job)


async def get(call: Call, request: Any) -> wire_json.Resource:
    name = read_vertex_name(request.name, _COLLECTION)
    job, _ = await read_work(call.services.reader, name, Job)
    return _shown(call, job)


async def list_(call: Call, request: Any) -> Message:
    wanted = compile_job_filter(request.filter, views.STATES)
    page = await page_of(call, request, _COLLECTION, wanted)
    return pool.message_class("google.cloud.aiplatform.v1.ListCustomJobsResponse")(
        custom_jobs=[_shown(call, of_kind(job, Job)).message() for job, _ in page.jobs],
        next_page_token=page.next_token,
    )


def _shown(call: Call, job: Job) -> wire_json.Resource:
    shown = views.custom_job(with_link(call.services, job))
    if shown.kept.get("jobSpec", {}).get("enableWebAccess"):
        outputs: Any = shown.outputs
        add_to_job(call, job, outputs.web_access_uris)
    return shown


def bucket_uses(spec: Mapping[str, Any], path: str) -> Iterator[BucketUse]:
    """Yield the bucket paths of a CustomJobSpec, in public JSON, at `path` of its request."""
    for position, pool_spec in enumerate(spec.get("workerPoolSpecs", ())):
        uris = pool_spec.get("pythonPackageSpec", {}).get("packageUris", ())
        field = f"{path}.worker_pool_specs[{position}].python_package_spec.package_uris"
        yield from ((f"{field}[{index}]", uri) for index, uri in enumerate(uris))
    output = spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "")
    yield f"{path}.base_output_directory.output_uri_prefix", output


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.CreateCustomJob": create,
    f"{_SERVICE}.GetCustomJob": get,
    f"{_SERVICE}.ListCustomJobs": list_,
    f"{_SERVICE}.CancelCustomJob": cancelling(_COLLECTION),
    f"{_SERVICE}.DeleteCustomJob": deleting(_COLLECTION),
}


CHECKS: Final[Checks] = {f"{_SERVICE}.CreateCustomJob": check_create}
