"""`aiplatform` v1 JobService: customJobs and hyperparameterTuningJobs (facts/resources#custom-jobs,
facts/resources#tuning-jobs, facts/tuning)."""

import asyncio
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import views, works
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.messages import V1
from trainshed.api.aiplatform_v1.references import add_to_run, make_run, unknown_references
from trainshed.api.calls.call import Call, Handlers, sent
from trainshed.api.calls.checks import Checks
from trainshed.api.resources.jobs import add_to_job, add_to_trials
from trainshed.api.resources.submission import checked, new_job, new_tuning_job, store_works
from trainshed.core.errors import Violation
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Api, Collection, JobName
from trainshed.core.specs.tuning import ParsedTuningJob, parse_tuning_job
from trainshed.core.specs.vertex import ParsedCustomJob, parse_custom_job
from trainshed.core.tuning.records import TuningJob
from trainshed.wire.json import Resource


def check_custom_job(
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


async def new_custom_job(call: Call, request: Any) -> tuple[Job, dict[str, Any]]:
    """Return the job as `create` stores it, after all checks, and its public JSON. A job of an experiment
    that names no run gets one of its own only where it is created."""
    spec = sent(call, request, "custom_job").get("jobSpec", {})
    further = await unknown_references(call.services, request.parent, spec, "job_spec")
    parsed, public = check_custom_job(call, request, further)
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


async def create_custom_job(call: Call, request: Any) -> Resource:
    spec = request.custom_job.job_spec
    if spec.experiment and not spec.experiment_run:
        await new_custom_job(call, request)  # A refused request must not create a run.
        spec.experiment_run = await make_run(call.services, spec.experiment)
        sent(call, request, "custom_job")["jobSpec"]["experimentRun"] = spec.experiment_run
    job, public = await new_custom_job(call, request)
    await store_works(call.services, call.principal, job)
    if spec.experiment_run:
        await add_to_run(call.services, spec.experiment_run, job.name)
    return Resource(public, views.custom_job_outputs(job), request.custom_job)


async def _custom_job(call: Call, job: Job, in_list: bool) -> Resource:
    view = views.custom_job(job)
    if view.kept.get("jobSpec", {}).get("enableWebAccess"):
        outputs: Any = view.outputs
        add_to_job(call, job, outputs.web_access_uris)
    return view


def check_tuning_job(
    call: Call, request: Any, further: tuple[Violation, ...] = ()
) -> tuple[ParsedTuningJob, dict[str, Any]]:
    """Return the job to create, and the same in public JSON. Raises InvalidRequest with all faults, including
    those in `further`."""
    parent = known_location(request.parent)
    services = call.services
    public = sent(call, request, "hyperparameter_tuning_job")
    parsed = checked(
        lambda: parse_tuning_job(
            public,
            region=parent.location,
            runtimes=services.runtimes,
            max_trials=services.settings.max_study_trials,
        ),
        works.bucket_uses(public.get("trialJobSpec", {}), "trial_job_spec"),
        services.buckets,
        further,
        project=parent.project_id,
    )
    return parsed, public


async def asked_for_tuning_job(call: Call, request: Any) -> tuple[ParsedTuningJob, dict[str, Any]]:
    """Return what `check_tuning_job` returns, after the checks that need the store as well."""
    spec = sent(call, request, "hyperparameter_tuning_job").get("trialJobSpec", {})
    further = await unknown_references(call.services, request.parent, spec, "trial_job_spec")
    return check_tuning_job(call, request, further)


async def create_tuning_job(call: Call, request: Any) -> Message:
    services = call.services
    parsed, public = await asked_for_tuning_job(call, request)
    parent = known_location(request.parent)
    uid = services.new_uid()
    name = JobName(Api.VERTEX, parent.project_id, parent.location, str(uid), Collection.TUNING_JOBS)
    job = new_tuning_job(
        services,
        uid,
        name,
        display_name=parsed.display_name,
        spec=parsed.spec,
        labels=parsed.labels,
        public=public,
    )
    await store_works(services, call.principal, job)
    views.set_tuning_outputs(request.hyperparameter_tuning_job, job, views.NOTHING_TRIED)
    return request.hyperparameter_tuning_job


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


_SERVICE: Final = "JobService"
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
