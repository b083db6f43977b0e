"""`aiplatform` v1 JobService: customJobs and hyperparameterTuningJobs (facts/resources#custom-jobs,
facts/resources#tuning-jobs, facts/tuning)."""

import asyncio
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import views, works
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.references import unknown_references
from trainshed.api.aiplatform_v1.views import V1
from trainshed.api.calls.call import Call, Handlers, sent
from trainshed.api.calls.checks import Checks
from trainshed.api.resources.jobs import add_to_trials, links_of, of_kind
from trainshed.api.resources.submission import checked, new_vertex_job, store_works
from trainshed.core.errors import Violation
from trainshed.core.job import JobDraft
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Collection
from trainshed.core.requests import snake_case
from trainshed.core.specs.tuning import parse_tuning_job
from trainshed.core.specs.vertex import parse_custom_job
from trainshed.core.tuning.records import TuningJob

_SERVICE: Final = "JobService"
_CUSTOM, _TUNING = "custom_job", "hyperparameter_tuning_job"
_SPECS: Final = {_CUSTOM: "jobSpec", _TUNING: "trialJobSpec"}
"""The fields of requests that have a job, each with the part of it that says what runs."""


def check(
    field: str, call: Call, request: Any, further: tuple[Violation, ...] = ()
) -> JobDraft[Any]:
    """Return the job to create, which is in a field of the request. Raises InvalidRequest with all faults,
    including those in `further`."""
    services, key = call.services, _SPECS[field]
    parent = known_location(request.parent)
    public = sent(call, request, field)

    def parse() -> JobDraft[Any]:
        if field == _CUSTOM:
            return parse_custom_job(public, region=parent.location, runtimes=services.runtimes)
        return parse_tuning_job(
            public,
            region=parent.location,
            runtimes=services.runtimes,
            max_trials=services.settings.max_study_trials,
        )

    uses = works.bucket_uses(public.get(key, {}), snake_case(key))
    return checked(parse, uses, services.buckets, further, project=parent.project_id)


async def asked_for(field: str, call: Call, request: Any) -> JobDraft[Any]:
    """Return what `check` returns, after the checks that need the store as well. A job of an experiment that
    names no run gets one of its own only where it is created."""
    key = _SPECS[field]
    spec = sent(call, request, field).get(key, {})
    missing = await unknown_references(call.services, request.parent, spec, snake_case(key))
    return check(field, call, request, missing)


async def create_custom_job(call: Call, request: Any) -> Message:
    tracking, spec = call.services.tracking, request.custom_job.job_spec
    if tracking is not None and spec.experiment and not spec.experiment_run:
        await asked_for(_CUSTOM, call, request)  # A refused request must not create a run.
        spec.experiment_run = await tracking.make_run(spec.experiment)
        sent(call, request, _CUSTOM)["jobSpec"]["experimentRun"] = spec.experiment_run
    draft = await asked_for(_CUSTOM, call, request)
    public = sent(call, request, _CUSTOM)
    job = new_vertex_job(call.services, known_location(request.parent), draft, public)
    await store_works(call.services, call.principal, job)
    if tracking is not None and spec.experiment_run:
        await tracking.add_to_run(spec.experiment_run, job.name)
    created = request.custom_job
    views.set_custom_job_outputs(created, of_kind(job, Job))
    return created


async def create_tuning_job(call: Call, request: Any) -> Message:
    draft = await asked_for(_TUNING, call, request)
    public = sent(call, request, _TUNING)
    job = new_vertex_job(call.services, known_location(request.parent), draft, public)
    await store_works(call.services, call.principal, job)
    created = request.hyperparameter_tuning_job
    views.set_tuning_outputs(created, of_kind(job, TuningJob))
    return created


async def _custom_job(call: Call, job: Job, in_list: bool) -> Message:
    view: Any = views.custom_job(job)
    view.web_access_uris.update(links_of(call.services, call.principal, job))
    return view


async def _tuning_job(call: Call, job: TuningJob, in_list: bool) -> Message:
    studies = call.services.studies
    trials = await studies.history((job.study,))
    # Measurements are read after the trials, so that a finished trial is shown with all of its own. Lists
    # omit them, since a page of large jobs would have millions.
    measured = {} if in_list else await studies.measurements(job.study)
    # Takes half a second if a thousand trials measured a hundred times each; other requests go on meanwhile.
    view: Any = await asyncio.to_thread(views.tuning_job, job, trials, measured)
    if view.trial_job_spec.enable_web_access:
        add_to_trials(call, job, view.trials)
    return view


_CUSTOM_JOBS: Final = works.JobKind(
    _SERVICE, Collection.CUSTOM_JOBS, Job, _custom_job, views.STATES
)
_TUNING_JOBS: Final = works.JobKind(
    _SERVICE, Collection.TUNING_JOBS, TuningJob, _tuning_job, views.STATES
)
HANDLERS: Final[Handlers] = {
    **works.handlers(_CUSTOM_JOBS, create_custom_job),
    **works.handlers(_TUNING_JOBS, create_tuning_job),
}
CHECKS: Final[Checks] = {
    f"{V1}.{_SERVICE}.CreateCustomJob": partial(check, _CUSTOM),
    f"{V1}.{_SERVICE}.CreateHyperparameterTuningJob": partial(check, _TUNING),
}
