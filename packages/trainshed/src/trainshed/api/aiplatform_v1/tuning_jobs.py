"""`aiplatform` v1 JobService: hyperparameterTuningJobs (facts/resources#tuning-jobs, facts/tuning)."""

import asyncio
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import views, works
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.messages import V1
from trainshed.api.aiplatform_v1.references import unknown_references
from trainshed.api.calls.call import Call, Handlers, sent
from trainshed.api.calls.checks import Checks
from trainshed.api.resources.submission import checked, new_tuning_job, store_works
from trainshed.api.resources.web_access import add_to_trials
from trainshed.core.errors import Violation
from trainshed.core.names import Api, Collection, JobName
from trainshed.core.specs.tuning import ParsedTuningJob, parse_tuning_job
from trainshed.core.tuning.records import TuningJob


def check_create(
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


async def asked_for(call: Call, request: Any) -> tuple[ParsedTuningJob, dict[str, Any]]:
    """Return what `check_create` returns, after the checks that need the store as well."""
    spec = sent(call, request, "hyperparameter_tuning_job").get("trialJobSpec", {})
    further = await unknown_references(call.services, request.parent, spec, "trial_job_spec")
    return check_create(call, request, further)


async def create(call: Call, request: Any) -> Message:
    services = call.services
    parsed, public = await asked_for(call, request)
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


async def _view(call: Call, job: TuningJob, in_list: bool) -> Message:
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


_KIND: Final = works.Kind("JobService", Collection.TUNING_JOBS, TuningJob, _view, views.STATES)
HANDLERS: Final[Handlers] = works.handlers(_KIND, create)
CHECKS: Final[Checks] = {f"{V1}.JobService.CreateHyperparameterTuningJob": check_create}
