"""`aiplatform` v1 JobService: customJobs create, get, list, cancel, delete (facts §1.2)."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import views
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.call import Call, Handlers
from trainshed.api.checks import Checks
from trainshed.api.filters.jobs import compile_job_filter
from trainshed.api.jobs import cancel_for_user, read_job_name
from trainshed.api.masks import Mask
from trainshed.api.paging import list_jobs, page_size
from trainshed.api.submission import BucketUse, checked, new_job, store_job
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Api, JobName
from trainshed.core.specs.vertex import ParsedCustomJob, parse_custom_job
from trainshed.store.port import JobQuery, Operation
from trainshed.wire import json as wire_json
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.aiplatform.v1.JobService"
_log = logging.getLogger("trainshed.api")
_DEFAULT_PAGE: Final = 100
_LARGEST_PAGE: Final = 100


def check_create(call: Call, request: Any) -> tuple[ParsedCustomJob, dict[str, Any]]:
    """The job to create, and the same in public JSON. Raises InvalidRequest with all that is wrong."""
    parent = known_location(request.parent)
    public = wire_json.to_public(request.custom_job)
    parsed = checked(
        lambda: parse_custom_job(public, region=parent.location, runtimes=call.services.runtimes),
        _bucket_uses(public),
        call.services.buckets,
    )
    return parsed, public


def new(call: Call, request: Any) -> Job:
    """The job as `create` stores it. Raises InvalidRequest with all that is wrong."""
    parsed, public = check_create(call, request)
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


async def create(call: Call, request: Any) -> Message:
    job = new(call, request)
    await store_job(call.services, job, call.principal.email)
    views.set_outputs(request.custom_job, job)
    return request.custom_job


async def get(call: Call, request: Any) -> Message:
    job, _ = await call.services.reader.job(_job_name(request.name))
    return views.custom_job(job)


async def list_(call: Call, request: Any) -> Message:
    parent = known_location(request.parent)
    passes = compile_job_filter(request.filter, views.STATES)
    mask = Mask(request.read_mask, views.CUSTOM_JOB)
    size = page_size(request.page_size, default=_DEFAULT_PAGE, maximum=_LARGEST_PAGE)
    page = await list_jobs(
        call.services.reader,
        JobQuery(parent.project_id, Api.VERTEX, parent.location, limit=size),
        passes,
        token=request.page_token,
        question=(str(parent), request.filter),
    )
    return pool.message_class("google.cloud.aiplatform.v1.ListCustomJobsResponse")(
        custom_jobs=[mask.apply(views.custom_job(job)) for job, _ in page.jobs],
        next_page_token=page.next_token,
    )


async def cancel(call: Call, request: Any) -> Message:
    await cancel_for_user(call.services, _job_name(request.name))
    return pool.message_class("google.protobuf.Empty")()


async def delete(call: Call, request: Any) -> Message:
    name = _job_name(request.name)
    now = call.services.now()
    record = Operation(
        name=f"projects/{name.project_id}/locations/{name.location}/operations/{call.services.new_uid()}",
        kind="delete",
        target=str(name),
        created=now,
        updated=now,
    )
    uid = await call.services.intake.delete_job(name, record)
    try:
        await call.services.logs.remove(uid)
    except OSError as error:
        # The job is gone and its uid is never used again: what is left of its log is only waste.
        _log.warning("the log of the deleted job %s could not be removed: %s", name, error)
    return views.operation(record)


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.CreateCustomJob": create,
    f"{_SERVICE}.GetCustomJob": get,
    f"{_SERVICE}.ListCustomJobs": list_,
    f"{_SERVICE}.CancelCustomJob": cancel,
    f"{_SERVICE}.DeleteCustomJob": delete,
}


CHECKS: Final[Checks] = {f"{_SERVICE}.CreateCustomJob": check_create}


def _job_name(text: str) -> JobName:
    name = read_job_name(text)
    if name.api is not Api.VERTEX:
        raise NotFound(f"CustomJob {text!r} was not found: it is the name of an ml v1 job.")
    return name


def _bucket_uses(public: Mapping[str, Any]) -> Iterator[BucketUse]:
    spec = public.get("jobSpec", {})
    for position, pool_spec in enumerate(spec.get("workerPoolSpecs", ())):
        uris = pool_spec.get("pythonPackageSpec", {}).get("packageUris", ())
        path = f"job_spec.worker_pool_specs[{position}].python_package_spec.package_uris"
        yield from ((f"{path}[{index}]", uri) for index, uri in enumerate(uris))
    output = spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "")
    yield "job_spec.base_output_directory.output_uri_prefix", output
