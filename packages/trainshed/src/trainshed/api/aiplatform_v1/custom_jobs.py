"""`aiplatform` v1 JobService: customJobs (facts/resources#custom-jobs)."""

from typing import Any, Final

from trainshed.api.aiplatform_v1 import views, works
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.messages import V1
from trainshed.api.aiplatform_v1.references import add_to_run, make_run, unknown_references
from trainshed.api.calls.call import Call, Handlers, sent
from trainshed.api.calls.checks import Checks
from trainshed.api.resources.submission import checked, new_job, store_works
from trainshed.api.resources.web_access import add_to_job
from trainshed.core.errors import Violation
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Api, Collection, JobName
from trainshed.core.specs.vertex import ParsedCustomJob, parse_custom_job
from trainshed.wire.json import Resource


def check_create(
    call: Call, request: Any, further: tuple[Violation, ...] = ()
) -> tuple[ParsedCustomJob, dict[str, Any]]:
    """Return the job to create, and the same in public JSON. Raises InvalidRequest with all faults, including
    those in `further`."""
    parent = known_location(request.parent)
    public = sent(call, request, "custom_job")
    parsed = checked(
        lambda: parse_custom_job(public, region=parent.location, runtimes=call.services.runtimes),
        works.bucket_uses(public.get("jobSpec", {}), "job_spec"),
        call.services.buckets,
        further,
        project=parent.project_id,
    )
    return parsed, public


async def new(call: Call, request: Any) -> tuple[Job, dict[str, Any]]:
    """Return the job as `create` stores it, after all checks, and its public JSON. A job of an experiment
    that names no run gets one of its own only where it is created."""
    spec = sent(call, request, "custom_job").get("jobSpec", {})
    further = await unknown_references(call.services, request.parent, spec, "job_spec")
    parsed, public = check_create(call, request, further)
    parent = known_location(request.parent)
    uid = call.services.new_uid()
    job = new_job(
        call.services,
        uid,
        JobName(Api.VERTEX, parent.project_id, parent.location, str(uid)),
        display_name=parsed.display_name,
        spec=parsed.spec,
        labels=parsed.labels,
        public=public,
    )
    return job, public


async def create(call: Call, request: Any) -> Resource:
    spec = request.custom_job.job_spec
    if spec.experiment and not spec.experiment_run:
        await new(call, request)  # A refused request must not create a run.
        spec.experiment_run = await make_run(call.services, spec.experiment)
        sent(call, request, "custom_job")["jobSpec"]["experimentRun"] = spec.experiment_run
    job, public = await new(call, request)
    await store_works(call.services, call.principal, job)
    if spec.experiment_run:
        await add_to_run(call.services, spec.experiment_run, job.name)
    return Resource(public, views.custom_job_outputs(job), request.custom_job)


async def _view(call: Call, job: Job, in_list: bool) -> Resource:
    view = views.custom_job(job)
    if view.kept.get("jobSpec", {}).get("enableWebAccess"):
        outputs: Any = view.outputs
        add_to_job(call, job, outputs.web_access_uris)
    return view


_KIND: Final = works.Kind("JobService", Collection.CUSTOM_JOBS, Job, _view, views.STATES)
HANDLERS: Final[Handlers] = works.handlers(_KIND, create)
CHECKS: Final[Checks] = {f"{V1}.JobService.CreateCustomJob": check_create}
