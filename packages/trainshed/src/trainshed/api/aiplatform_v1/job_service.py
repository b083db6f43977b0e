"""`aiplatform` v1 JobService: customJobs and hyperparameterTuningJobs (facts/resources#custom-jobs,
facts/resources#tuning-jobs, facts/tuning)."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import views, works
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.references import add_to_run, make_run, unknown_references
from trainshed.api.aiplatform_v1.views import V1
from trainshed.api.calls.call import Call, Handlers, sent
from trainshed.api.calls.checks import Checks
from trainshed.api.resources.jobs import add_to_job, add_to_trials, of_kind
from trainshed.api.resources.submission import checked, new_vertex_job, store_works
from trainshed.core.errors import Violation
from trainshed.core.job import JobDraft, JobSpec
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Collection
from trainshed.core.requests import snake_case
from trainshed.core.specs.tuning import parse_tuning_job
from trainshed.core.specs.vertex import parse_custom_job
from trainshed.core.tuning.records import TuningJob, TuningSpec

SpecT = TypeVar("SpecT", bound=JobSpec | TuningSpec)

_SERVICE: Final = "JobService"
_SPECS: Final = {"custom_job": "jobSpec", "hyperparameter_tuning_job": "trialJobSpec"}
"""Where a request's job has the specification of what runs."""


def check_custom_job(
    call: Call, request: Any, further: tuple[Violation, ...] = ()
) -> JobDraft[JobSpec]:
    """Return the job to create. Raises InvalidRequest with all faults, including those in `further`."""
    parse = partial(parse_custom_job, runtimes=call.services.runtimes)
    return _checked(call, request, "custom_job", parse, further)


def check_tuning_job(
    call: Call, request: Any, further: tuple[Violation, ...] = ()
) -> JobDraft[TuningSpec]:
    services = call.services
    most = services.settings.max_study_trials
    parse = partial(parse_tuning_job, runtimes=services.runtimes, max_trials=most)
    return _checked(call, request, "hyperparameter_tuning_job", parse, further)


def _checked(
    call: Call,
    request: Any,
    field: str,
    parse: Callable[..., JobDraft[SpecT]],
    further: tuple[Violation, ...],
) -> JobDraft[SpecT]:
    parent = known_location(request.parent)
    public = sent(call, request, field)
    key = _SPECS[field]
    return checked(
        lambda: parse(public, region=parent.location),
        works.bucket_uses(public.get(key, {}), snake_case(key)),
        call.services.buckets,
        further,
        project=parent.project_id,
    )


async def asked_for_custom_job(call: Call, request: Any) -> JobDraft[JobSpec]:
    """Return what `check_custom_job` returns, after the checks that need the store as well. A job of an
    experiment that names no run gets one of its own only where it is created."""
    return check_custom_job(call, request, await _not_there(call, request, "custom_job"))


async def asked_for_tuning_job(call: Call, request: Any) -> JobDraft[TuningSpec]:
    missing = await _not_there(call, request, "hyperparameter_tuning_job")
    return check_tuning_job(call, request, missing)


async def _not_there(call: Call, request: Any, field: str) -> tuple[Violation, ...]:
    key = _SPECS[field]
    spec = sent(call, request, field).get(key, {})
    return await unknown_references(call.services, request.parent, spec, snake_case(key))


async def create_custom_job(call: Call, request: Any) -> Message:
    spec = request.custom_job.job_spec
    if spec.experiment and not spec.experiment_run:
        await asked_for_custom_job(call, request)  # A refused request must not create a run.
        spec.experiment_run = await make_run(call.services, spec.experiment)
        sent(call, request, "custom_job")["jobSpec"]["experimentRun"] = spec.experiment_run
    draft = await asked_for_custom_job(call, request)
    public = sent(call, request, "custom_job")
    job = new_vertex_job(call.services, known_location(request.parent), draft, public)
    await store_works(call.services, call.principal, job)
    if spec.experiment_run:
        await add_to_run(call.services, spec.experiment_run, job.name)
    created = request.custom_job
    views.set_custom_job_outputs(created, of_kind(job, Job))
    return created


async def create_tuning_job(call: Call, request: Any) -> Message:
    draft = await asked_for_tuning_job(call, request)
    public = sent(call, request, "hyperparameter_tuning_job")
    job = new_vertex_job(call.services, known_location(request.parent), draft, public)
    await store_works(call.services, call.principal, job)
    created = request.hyperparameter_tuning_job
    views.set_tuning_outputs(created, of_kind(job, TuningJob), views.NOTHING_TRIED)
    return created


async def _custom_job(call: Call, job: Job, in_list: bool) -> Message:
    view: Any = views.custom_job(job)
    if view.job_spec.enable_web_access:
        add_to_job(call, job, view.web_access_uris)
    return view


async def _tuning_job(call: Call, job: TuningJob, in_list: bool) -> Message:
    studies = call.services.studies
    trials = await studies.history((job.study,))
    # Measurements are read after the trials, so that a finished trial is shown with all of its own. Lists
    # omit them, since a page of large jobs would have millions.
    measured = {} if in_list else await studies.measurements(job.study)
    evidence = views.Evidence(trials, measured)
    # Takes half a second if a thousand trials measured a hundred times each; other requests go on meanwhile.
    view: Any = await asyncio.to_thread(views.tuning_job, job, evidence)
    if view.trial_job_spec.enable_web_access:
        add_to_trials(call, job, view.trials)
    return view


_CUSTOM_JOBS: Final = works.Kind(_SERVICE, Collection.CUSTOM_JOBS, Job, _custom_job, views.STATES)
_TUNING_JOBS: Final = works.Kind(
    _SERVICE, Collection.TUNING_JOBS, TuningJob, _tuning_job, views.STATES
)
HANDLERS: Final[Handlers] = {
    **works.handlers(_CUSTOM_JOBS, create_custom_job),
    **works.handlers(_TUNING_JOBS, create_tuning_job),
}
CHECKS: Final[Checks] = {
    f"{V1}.{_SERVICE}.CreateCustomJob": check_custom_job,
    f"{V1}.{_SERVICE}.CreateHyperparameterTuningJob": check_tuning_job,
}
