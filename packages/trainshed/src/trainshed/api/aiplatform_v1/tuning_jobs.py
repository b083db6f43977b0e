"""`aiplatform` v1 JobService: hyperparameterTuningJobs create, get, list, cancel, delete
(facts/resources#tuning-jobs, facts/tuning)."""

import asyncio
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import views
from trainshed.api.aiplatform_v1.collections import cancelling, deleting, page_of, unknown_secrets
from trainshed.api.aiplatform_v1.custom_jobs import bucket_uses
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.metadata.job_runs import unknown_contexts
from trainshed.api.aiplatform_v1.tensorboards.job_boards import unknown_board
from trainshed.api.aiplatform_v1.views import NOTHING_TRIED, Evidence
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
from trainshed.api.resources.submission import checked, new_tuning_job, store_works
from trainshed.api.resources.web_access import add_to_trials
from trainshed.core.errors import Violation
from trainshed.core.names import Api, Collection, JobName
from trainshed.core.specs.tuning import ParsedTuningJob, parse_tuning_job
from trainshed.core.study.records import Trial
from trainshed.core.tuning.records import TuningJob
from trainshed.wire import json as wire_json
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.aiplatform.v1.JobService"
_COLLECTION: Final = Collection.TUNING_JOBS


def check_create(
    call: Call, request: Any, further: tuple[Violation, ...] = ()
) -> tuple[ParsedTuningJob, dict[str, Any]]:
    """Return the job to create, and the same in public JSON. Raises InvalidRequest with all faults, including
    those in `further`."""
    parent = known_location(request.parent)
    services = call.services
    public = wire_json.to_public(request.hyperparameter_tuning_job)
    parsed = checked(
        lambda: parse_tuning_job(
            public,
            region=parent.location,
            runtimes=services.runtimes,
            max_trials=services.settings.max_study_trials,
        ),
        bucket_uses(public.get("trialJobSpec", {}), "trial_job_spec"),
        services.buckets,
        further,
        project=parent.project_id,
    )
    return parsed, public


async def not_there(services: Services, request: Any) -> tuple[Violation, ...]:
    """Return violations for what the job to create names and does not exist, which only the store knows."""
    parent, spec = request.parent, request.hyperparameter_tuning_job.trial_job_spec
    public = wire_json.to_public(spec)
    project = known_location(parent).project_id
    return (
        *await unknown_secrets(services, parent, public, "trial_job_spec"),
        *await unknown_contexts(services, project, public, "trial_job_spec"),
        *await unknown_board(services, parent, public, "trial_job_spec"),
    )


async def create(call: Call, request: Any) -> Message:
    services = call.services
    sent = request.hyperparameter_tuning_job
    parsed, public = check_create(call, request, await not_there(services, request))
    parent = known_location(request.parent)
    uid = services.new_uid()
    job = new_tuning_job(
        services,
        uid,
        JobName(Api.VERTEX, parent.project_id, parent.location, str(uid), _COLLECTION),
        display_name=parsed.display_name,
        spec=parsed.spec,
        labels=parsed.labels,
        public=public,
    )
    await store_works(services, call.principal, job)
    views.set_tuning_outputs(sent, job, NOTHING_TRIED)
    return sent


async def get(call: Call, request: Any) -> Message:
    name = read_vertex_name(request.name, _COLLECTION)
    job, _ = await read_work(call.services.reader, name, TuningJob)
    evidence = await _evidence(call.services, job)
    # Takes half a second if a thousand trials measured a hundred times each; other requests go on meanwhile.
    return await _shown(call, job, evidence)


async def list_(call: Call, request: Any) -> Message:
    wanted = compile_job_filter(request.filter, views.STATES)
    page = await page_of(call, request, _COLLECTION, wanted)
    shown: list[Message] = []
    for work, _ in page.jobs:
        job = of_kind(work, TuningJob)
        # Lists omit measurements, of which a page of large jobs would have millions.
        tried = Evidence(await _trials(call.services, job), {})
        shown.append(await _shown(call, job, tried))
    return pool.message_class("google.cloud.aiplatform.v1.ListHyperparameterTuningJobsResponse")(
        hyperparameter_tuning_jobs=shown, next_page_token=page.next_token
    )


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.CreateHyperparameterTuningJob": create,
    f"{_SERVICE}.GetHyperparameterTuningJob": get,
    f"{_SERVICE}.ListHyperparameterTuningJobs": list_,
    f"{_SERVICE}.CancelHyperparameterTuningJob": cancelling(_COLLECTION),
    f"{_SERVICE}.DeleteHyperparameterTuningJob": deleting(_COLLECTION),
}


CHECKS: Final[Checks] = {f"{_SERVICE}.CreateHyperparameterTuningJob": check_create}


async def _shown(call: Call, job: TuningJob, evidence: Evidence) -> Message:
    shown = with_link(call.services, job)
    view: Any = await asyncio.to_thread(views.tuning_job, shown, evidence)
    if view.trial_job_spec.enable_web_access:
        add_to_trials(call, job, view.trials)
    return view


async def _evidence(services: Services, job: TuningJob) -> Evidence:
    """Measurements are read after the trials, so that a finished trial is shown with all of its own."""
    trials = await _trials(services, job)
    return Evidence(trials, await services.studies.measurements(job.study))


async def _trials(services: Services, job: TuningJob) -> tuple[Trial, ...]:
    return await services.studies.history((job.study,))
