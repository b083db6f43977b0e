"""`webAccessUris`: the links to shells that jobs made with `enableWebAccess` show while they run
(facts/resources).

A link opens a shell for whoever has it, so it is shown only to who may open one: programs, which may read the
jobs of their project, get none.
"""

import json
from typing import Any, Final

from trainshed.access.permissions import PERMISSIONS, held
from trainshed.access.principals import Principal
from trainshed.api.calls.call import Call
from trainshed.api.calls.services import Services
from trainshed.api.calls.tickets import Links
from trainshed.core.job.spec import JobSpec
from trainshed.core.lifecycle.records import Job
from trainshed.core.tuning.records import TuningJob

OPEN: Final = "trainshed.v1.Jobs.Shell"
"""The method that a link stands for."""


def add_to_job(call: Call, job: Job, uris: Any) -> None:
    """Put the links of a job that has asked for them into the map of its view."""
    if (links := _links(call.services, call.principal)) is not None:
        uris.update(links.of_job(job))


def add_to_trials(call: Call, job: TuningJob, trials: Any) -> None:
    """The same for the trials that run, of a tuning job that has asked for it, in whichever API's view of
    them."""
    links = _links(call.services, call.principal)
    if links is None or not job.running:
        return
    running = {str(trial.number): trial.job for trial in job.running}
    replicas = job.spec.trial.replicas()
    for view in trials:
        # `id` in one API, `trialId` in the other.
        number = view.id if "id" in view.DESCRIPTOR.fields_by_name else view.trial_id
        if number in running and view.HasField("start_time"):
            uid = running[number]
            view.web_access_uris.update(links.of_replicas(uid, job.name.api, replicas))


def links_of(services: Services, principal: Principal, job: Job) -> dict[str, str]:
    """The links of a job that runs and has asked for them, of either API; none for whom they are not shown
    to."""
    links = _links(services, principal)
    found = links.of_job(job) if links is not None else {}
    return found if found and asked_for(job.spec) else {}


def may_open(principal: Principal) -> bool:
    return PERMISSIONS[OPEN] in held(principal)


def asked_for(spec: JobSpec) -> bool:
    """Whether the request was for web access, in either API."""
    return bool(json.loads(spec.job_json).get("enableWebAccess"))


def _links(services: Services, principal: Principal) -> Links | None:
    shells = services.shells
    if shells is None or not shells.allowed or not may_open(principal):
        return None
    return shells.links
