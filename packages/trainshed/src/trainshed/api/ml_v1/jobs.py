"""`ml` v1 projects.jobs: create, get, list, cancel, and patch of labels; and projects.getConfig
(facts/resources#ml).

A job with hyperparameters is a tuning job, and each of its trials is a job of its own, `JOB.TRIAL`, which can
be read and cancelled but is not listed.
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf.message import Message
from msgspec.structs import replace

from trainshed.api.calls.call import Call, Handlers, sent
from trainshed.api.calls.checks import Checks
from trainshed.api.calls.paging import list_jobs, page_size
from trainshed.api.calls.parents import ProjectName
from trainshed.api.filters.jobs import compile_job_filter
from trainshed.api.ml_v1 import views
from trainshed.api.ml_v1.views import NOTHING_TRIED, Evidence
from trainshed.api.resources.jobs import (
    add_to_job,
    add_to_trials,
    cancel_work,
    queue_position,
    read_job_name,
    with_link,
)
from trainshed.api.resources.submission import BucketUse, checked, new_job, store_works
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.job import JobDraft, JobSpec
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Api, JobName, project_number
from trainshed.core.requests import Faults, Section
from trainshed.core.specs.ml import ParsedMlJob, parse_job
from trainshed.core.specs.syntax import read_labels
from trainshed.core.tuning.records import TuningJob, TuningSpec
from trainshed.core.works import Work
from trainshed.store.port import JobQuery
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.ml.v1.JobService"
_ACCOUNT: Final = "trainshed@localhost"
"""It stands for the service."""
_DEFAULT_PAGE: Final = 20
_LARGEST_PAGE: Final = 100
_RESUME: Final = "hyperparameters.resume_previous_job_id"


def check_create(call: Call, request: Any, further: tuple[Violation, ...] = ()) -> ParsedMlJob:
    """Return the job to create. Raises InvalidRequest with all faults, including those in `further`."""
    services = call.services
    public = sent(call, request, "job")
    return checked(
        lambda: parse_job(
            public,
            runtimes=services.runtimes,
            max_trials=services.settings.max_study_trials,
        ),
        _bucket_uses(public),
        services.buckets,
        further,
        project=ProjectName.parse(request.parent).project_id,
    )


async def asked_for(call: Call, request: Any) -> JobDraft[JobSpec]:
    """Return the job to create, after all checks; for a job with hyperparameters, the job of one trial.
    Raises InvalidRequest with all faults."""
    _, further = await _resumed(call, request)
    parsed = check_create(call, request, further)
    return JobDraft(parsed.spec, parsed.job_id, parsed.labels)


async def create(call: Call, request: Any) -> Message:
    services = call.services
    resumed, further = await _resumed(call, request)
    # `public` was made of the request as it came.
    call = call if resumed is None else replace(call, public=None)
    parsed = check_create(call, request, further)
    spec = parsed.spec if parsed.tuning is None else _resuming(parsed.tuning, resumed)
    name = JobName(Api.ML, ProjectName.parse(request.parent).project_id, "", parsed.job_id)
    draft = JobDraft(spec, parsed.job_id, parsed.labels)
    made = new_job(services, services.new_uid(), name, draft, sent(call, request, "job"))
    await store_works(services, call.principal, made)
    # Read again for the etag, which only the store can make.
    work, etag = await services.reader.job(made.name)
    views.set_outputs(request.job, work, etag, evidence=NOTHING_TRIED)
    return request.job


async def get(call: Call, request: Any) -> Message:
    work, etag = await call.services.reader.job(_job_name(request.name))
    return await _view(call, work, etag)


async def list_(call: Call, request: Any) -> Message:
    parent = ProjectName.parse(request.parent)
    wanted = compile_job_filter(request.filter, views.STATES)
    size = page_size(request.page_size, default=_DEFAULT_PAGE, maximum=_LARGEST_PAGE)
    page = await list_jobs(
        call.services.reader,
        JobQuery(parent.project_id, Api.ML, None, limit=size),
        wanted,
        token=request.page_token,
        question=(str(parent), request.filter),
    )
    return pool.message(
        "google.cloud.ml.v1.ListJobsResponse",
        jobs=[await _view(call, work, etag, in_list=True) for work, etag in page.jobs],
        next_page_token=page.next_token,
    )


async def cancel(call: Call, request: Any) -> Message:
    work, _ = await call.services.reader.job(_job_name(request.name))
    await cancel_work(call.services, call.principal, work)
    return pool.message("google.protobuf.Empty")


async def update(call: Call, request: Any) -> Message:
    """Replace the labels, which are all that can change. `job.etag` guards against a lost update."""
    name = _job_name(request.name)
    others = [path for path in request.update_mask.paths if path != "labels"]
    if others or not request.update_mask.paths:
        fields = ", ".join(others) or "nothing"
        raise InvalidRequest(
            (
                Violation(
                    "update_mask", f"Only labels can be updated (updateMask=labels), not {fields}."
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
    # The controller has a running job's labels in memory, and goes by them: who is notified, for instance.
    services.wake(changed.uid)
    work, etag = await services.reader.job(name)
    return await _view(call, work, etag)


async def get_config(call: Call, request: Any) -> Message:
    project = ProjectName.parse(request.name, field="name")
    response: Any = pool.message(
        "google.cloud.ml.v1.GetConfigResponse",
        service_account=_ACCOUNT,
        service_account_project=project_number(project.project_id),
    )
    response.config.tpu_service_account = _ACCOUNT
    return response


async def list_operations(call: Call, request: Any) -> Message:
    """Return none: training jobs make no operations. `gcloud ai-platform operations list` asks for them."""
    ProjectName.parse(request.name, field="name")
    return pool.message("google.longrunning.ListOperationsResponse")


async def get_operation(call: Call, request: Any) -> Message:
    raise NotFound(f"{request.name} does not exist: training jobs make no operations")


HANDLERS: Final[Handlers] = {
    "google.cloud.ml.v1.Operations.ListOperations": list_operations,
    "google.cloud.ml.v1.Operations.GetOperation": get_operation,
    "google.cloud.ml.v1.ProjectManagementService.GetConfig": get_config,
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
        raise NotFound(f"Job {text!r} was not found: it is the name of one of Vertex AI.")
    return name


async def _resumed(call: Call, request: Any) -> tuple[TuningJob | None, tuple[Violation, ...]]:
    """Return the tuning job that a new one resumes, and violations if that cannot be done. What the request
    leaves out of the search is put in as it was before (facts/tuning#ml)."""
    search = request.job.training_input.hyperparameters
    if not search.resume_previous_job_id:
        return None, ()
    project = ProjectName.parse(request.parent).project_id
    name = JobName(Api.ML, project, "", search.resume_previous_job_id)
    try:
        work, _ = await call.services.reader.job(name)
    except NotFound:
        return None, (Violation(_RESUME, f"{name} does not exist; name a job of this project."),)
    if not isinstance(work, TuningJob):
        text = f"{name} tuned no hyperparameters, so there is nothing to go on from."
        return None, (Violation(_RESUME, text),)
    if not work.state.is_final:
        text = f"{name} is {work.state}; wait for its end, or cancel it, and submit again."
        return None, (Violation(_RESUME, text),)
    previous: Any = views.job(work, "")
    before = previous.training_input.hyperparameters
    search.params.extend(() if search.params else before.params)
    for field in ("goal", "hyperparameter_metric_tag", "algorithm"):
        setattr(search, field, getattr(search, field) or getattr(before, field))
    return work, ()


def _resuming(spec: TuningSpec, previous: TuningJob | None) -> TuningSpec:
    """Return the specification with what was tried before it. Raises InvalidRequest if that was another
    search."""
    if previous is None:
        return spec
    before = previous.spec.study
    same = {
        "the parameters": spec.study.parameters == before.parameters,
        "the metric and its goal": spec.study.metrics == before.metrics,
    }
    differing = [words for words, alike in same.items() if not alike]
    if differing:
        text = (
            f"{previous.name} was another search: {' and '.join(differing)} must be the same in both"
            " jobs; give those, or leave the field out."
        )
        raise InvalidRequest((Violation(_RESUME, text),))
    return replace(
        spec,
        resumed=(*previous.spec.resumed, previous.study),
        first_trial=previous.next_trial,
    )


async def _view(call: Call, work: Work, etag: str, *, in_list: bool = False) -> Message:
    """Return the Job message with a tuning job's trials. A list does not read the trials' jobs, of which
    there may be very many: it shows the state of each trial as its study knows it."""
    services, evidence = call.services, NOTHING_TRIED
    if isinstance(work, TuningJob):
        trials = await services.studies.history((work.study,))
        children = () if in_list else await services.reader.children(work.uid)
        evidence = Evidence(trials, tuple(job for job in children if isinstance(job, Job)))
    shown = with_link(services, work)
    view: Any = views.job(shown, etag, queue_position(services.capacity, work), evidence)
    if view.training_input.enable_web_access:
        if isinstance(work, Job):
            add_to_job(call, work, view.training_output.web_access_uris)
        elif isinstance(work, TuningJob):
            add_to_trials(call, work, view.training_output.trials)
    return view


def _bucket_uses(public: Mapping[str, Any]) -> Iterator[BucketUse]:
    training = public.get("trainingInput", {})
    for index, uri in enumerate(training.get("packageUris", ())):
        yield f"package_uris[{index}]", uri
    yield "job_dir", training.get("jobDir", "")
