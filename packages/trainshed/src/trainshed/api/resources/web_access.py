"""`webAccessUris`: the links to shells that jobs made with `enableWebAccess` show while they run
(facts/resources).

A link opens a shell for everybody who has it, so only callers who may open shells get any, of their own.
Programs, which may read the jobs of their project, see none.
"""

import json
from typing import Any, Final

from trainshed.access.permissions import PERMISSIONS
from trainshed.access.principals import Principal
from trainshed.api.calls.call import Call
from trainshed.api.calls.links import Links
from trainshed.api.calls.services import Services
from trainshed.core import terminals
from trainshed.core.job import JobSpec
from trainshed.core.lifecycle.records import Job
from trainshed.core.tuning.records import TuningJob

OPEN: Final = "trainshed.v1.Jobs.Shell"
"""The method that a link stands for."""


def add_to_job(call: Call, job: Job, uris: Any) -> None:
    """Add the links of a job that was made with web access to the map of its view."""
    uris.update(_of_job(call.services, call.principal, job))


def add_to_trials(call: Call, job: TuningJob, trials: Any) -> None:
    """Add the links of the running trials of a tuning job that was made with web access, in either API's
    view."""
    links = _links(call.services, call.principal, job.name.project_id)
    shown = call.principal.shown
    if links is None or shown is None or not job.running:
        return
    running = {str(trial.number): trial.job for trial in job.running}
    replicas = job.spec.trial.replicas()
    for view in trials:
        # `id` in one API, `trialId` in the other.
        number = view.id if "id" in view.DESCRIPTOR.fields_by_name else view.trial_id
        if number in running and view.HasField("start_time"):
            uris = links.of_replicas(running[number], job.name.api, replicas, shown)
            view.web_access_uris.update(uris)


def links_of(services: Services, principal: Principal, job: Job) -> dict[str, str]:
    """Return the links of a running job of either API that was made with web access; {} if `principal` may
    not see them."""
    by_replica = _of_job(services, principal, job)
    return by_replica if by_replica and asked_for(job.spec) else {}


def pages_of(services: Services, principal: Principal, job: Job) -> dict[str, str]:
    """Return the addresses that open the web pages which a job offers, until it is over; {} if `principal`
    may not open them."""
    links = _links(services, principal, job.name.project_id)
    if links is None or job.state.is_final:
        return {}
    return {name: links.to_page(job.uid, name) for name in terminals.pages_of(job.labels)}


def asked_for(spec: JobSpec) -> bool:
    """Whether a job of either API was made with web access."""
    return bool(json.loads(spec.job_json).get("enableWebAccess"))


def _of_job(services: Services, principal: Principal, job: Job) -> dict[str, str]:
    links = _links(services, principal, job.name.project_id)
    if links is None or principal.shown is None:
        return {}
    return links.of_job(job, principal.shown)


def _links(services: Services, principal: Principal, project: str) -> Links | None:
    shells = services.shells
    if shells is None or not shells.allowed or not principal.may(PERMISSIONS[OPEN], project):
        return None
    return shells.links
