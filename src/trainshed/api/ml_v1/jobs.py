"""`ml` v1 projects.jobs: create, get, list, cancel, and patch of labels (facts §1.1)."""

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.call import Call, Handlers
from trainshed.api.checks import Checks
from trainshed.api.filters.jobs import compile_job_filter
from trainshed.api.jobs import cancel_for_user, queue_position, read_job_name
from trainshed.api.ml_v1 import views
from trainshed.api.paging import list_jobs, page_size
from trainshed.api.parents import ProjectName
from trainshed.api.submission import BucketUse, checked, new_job, store_job
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Api, JobName
from trainshed.core.specs.ml import ParsedMlJob, parse_job
from trainshed.core.specs.request import Faults, Section
from trainshed.core.specs.syntax import read_labels
from trainshed.store.port import JobQuery
from trainshed.wire import json as wire_json
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.ml.v1.JobService"
_DEFAULT_PAGE: Final = 20
_LARGEST_PAGE: Final = 100


def check_create(call: Call, request: Any) -> tuple[ParsedMlJob, dict[str, Any]]:
    """The job to create, and the same in public JSON. Raises InvalidRequest with all that is wrong."""
    public = wire_json.to_public(request.job)
    parsed = checked(
        lambda: parse_job(public, runtimes=call.services.runtimes),
        _bucket_uses(public),
        call.services.buckets,
    )
    return parsed, public


def new(call: Call, request: Any) -> Job:
    """The job as `create` stores it. Raises InvalidRequest with all that is wrong."""
    parent = ProjectName.parse(request.parent)
    parsed, public = check_create(call, request)
    return new_job(
        call.services,
        call.services.new_uid(),
        JobName(Api.ML, parent.project_id, "", parsed.job_id),
        display_name=parsed.job_id,
        spec=parsed.spec,
        labels=parsed.labels,
        public=public,
    )


async def create(call: Call, request: Any) -> Message:
    made = new(call, request)
    await store_job(call.services, made, call.principal.email)
    # Read again for the etag, which only the store can make.
    job, etag = await call.services.reader.job(made.name)
    views.set_outputs(request.job, job, etag)
    return request.job


async def get(call: Call, request: Any) -> Message:
    job, etag = await call.services.reader.job(_job_name(request.name))
    return views.job(job, etag, queue_position(call.services.room, job))


async def list_(call: Call, request: Any) -> Message:
    parent = ProjectName.parse(request.parent)
    passes = compile_job_filter(request.filter, views.STATES)
    size = page_size(request.page_size, default=_DEFAULT_PAGE, maximum=_LARGEST_PAGE)
    page = await list_jobs(
        call.services.reader,
        JobQuery(parent.project_id, Api.ML, None, limit=size),
        passes,
        token=request.page_token,
        question=(str(parent), request.filter),
    )
    return pool.message_class("google.cloud.ml.v1.ListJobsResponse")(
        jobs=[
            views.job(job, etag, queue_position(call.services.room, job)) for job, etag in page.jobs
        ],
        next_page_token=page.next_token,
    )


async def cancel(call: Call, request: Any) -> Message:
    await cancel_for_user(call.services, _job_name(request.name))
    return pool.message_class("google.protobuf.Empty")()


async def update(call: Call, request: Any) -> Message:
    """Replace the labels: the one thing that can change. `job.etag` guards against a lost update."""
    name = _job_name(request.name)
    others = [path for path in request.update_mask.paths if path != "labels"]
    if others or not request.update_mask.paths:
        asked = ", ".join(others) or "nothing"
        raise InvalidRequest(
            (
                Violation(
                    "update_mask", f"Only labels can be updated (updateMask=labels), not {asked}."
                ),
            )
        )
    faults = Faults()
    labels = read_labels(Section({"labels": dict(request.job.labels)}, "", faults))
    faults.refuse()
    etag = base64.b64encode(request.job.etag).decode()
    services = call.services
    changed = await services.intake.replace_labels(name, labels, etag, services.now())
    services.notices.publish(changed.uid)
    job, etag = await services.reader.job(name)
    return views.job(job, etag, queue_position(services.room, job))


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.CreateJob": create,
    f"{_SERVICE}.GetJob": get,
    f"{_SERVICE}.ListJobs": list_,
    f"{_SERVICE}.CancelJob": cancel,
    f"{_SERVICE}.UpdateJob": update,
}


CHECKS: Final[Checks] = {f"{_SERVICE}.CreateJob": check_create}


def _job_name(text: str) -> JobName:
    name = read_job_name(text)
    if name.api is not Api.ML:
        raise NotFound(f"Job {text!r} was not found: it is the name of a Vertex custom job.")
    return name


def _bucket_uses(public: Mapping[str, Any]) -> Iterator[BucketUse]:
    training = public.get("trainingInput", {})
    for index, uri in enumerate(training.get("packageUris", ())):
        yield f"package_uris[{index}]", uri
    yield "job_dir", training.get("jobDir", "")
