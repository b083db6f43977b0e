"""Functions that both training APIs use for the job, tuning job or pipeline in a request: parse its name,
find, cancel and delete it, and return its position in the queue.

Jobs that were created with `enableWebAccess` contain links to shells while they run (`webAccessUris`,
facts/resources). Every user with a link can open the shell. Therefore only callers who may open shells
receive links. Programs may read the jobs of their project, but never receive links.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from trainshed.access.permissions import PERMISSIONS
from trainshed.access.principals import Principal
from trainshed.api.calls.call import Call
from trainshed.api.calls.impersonation import actor_of
from trainshed.api.calls.links import Links
from trainshed.api.calls.services import CapacityView, Services
from trainshed.api.resources.operations import finished_operation
from trainshed.core import terminals
from trainshed.core.errors import (
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    Unavailable,
    Violation,
)
from trainshed.core.failure.messages import add_link
from trainshed.core.job import JobSpec
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, TimelineEntry
from trainshed.core.lifecycle.records import Actor, Job
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.names import Api, Collection, JobName, JobUid, ReplicaId, log_task_name
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.pipelines import Pipeline
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.store.records import Operation, OperationKind
from trainshed.store.sqlite.reader import Reader

_log = logging.getLogger("trainshed.api")

RESOURCE_NAMES: Final[Mapping[Collection, str]] = {
    Collection.CUSTOM_JOBS: "CustomJob",
    Collection.TUNING_JOBS: "HyperparameterTuningJob",
    Collection.PIPELINES: "TrainingPipeline",
    Collection.PIPELINE_JOBS: "PipelineJob",
}
"""The noun for a resource of each collection, as in public error texts."""

Kind = TypeVar("Kind", bound=Work)
_UID_DIGITS = 19


def read_job_name(text: str, *, field: str = "name") -> JobName:
    """Return the job name in `field`, which may be from either API. Raises InvalidRequest for any other
    text."""
    try:
        return JobName.parse(text)
    except ValueError as error:
        raise InvalidRequest((Violation(field, f"{error}."),)) from None


def read_vertex_name(text: str, collection: Collection) -> JobName:
    """Return the name of a resource in `collection`. Raises InvalidRequest for an invalid name, and NotFound
    for a name in another collection."""
    name = read_job_name(text)
    if name.api is not Api.VERTEX:
        other = "an ml v1 job"
    elif name.collection is not collection:
        other = f"a {RESOURCE_NAMES[name.collection]}"
    else:
        return name
    raise NotFound(
        f"{RESOURCE_NAMES[collection]} {text!r} was not found, because this is the name of {other}. "
        f"Use projects/PROJECT/locations/LOCATION/{collection}/ID."
    )


async def read_work(reader: Reader, name: JobName, kind: type[Kind]) -> tuple[Kind, str]:
    """Return the stored job, tuning job or pipeline with this name, and its etag. Raises NotFound if it does
    not exist or is of another kind."""
    work, etag = await reader.job(name)
    return require_kind(work, kind), etag


def require_kind(work: Work, kind: type[Kind]) -> Kind:
    """Return the job, tuning job or pipeline if it is of this kind; otherwise raise NotFound."""
    if not isinstance(work, kind):
        is_ml = work.name.api is Api.ML
        word = "job of the ml v1 API" if is_ml else RESOURCE_NAMES[work.name.collection]
        raise NotFound(
            f"{work.name} was not found as a {kind.__name__}, because it is a {word}. "
            f"Use the method for a {word}."
        )
    return work


async def find_work(reader: Reader, target: str, projects: Sequence[str] = ()) -> tuple[Work, str]:
    """Find a job, tuning job or pipeline by full name, UID or job ID. Return it with its etag.

    `projects`: the projects in which UIDs and job IDs are searched; empty = all projects. If several jobs
    have the ID, the newest is returned. Raises NotFound.
    """
    if "/" in target:
        return await reader.job(read_job_name(target, field="job"))
    with suppress(NotFound):
        return await find_by_uid(reader, target, projects)
    return await reader.find(target, projects)


async def find_by_uid(reader: Reader, text: str, projects: Sequence[str] = ()) -> tuple[Work, str]:
    """Return the job, tuning job or pipeline with this UID, and its etag. `projects`: the projects to search;
    empty = all projects. Raises NotFound, also for an invalid UID."""
    is_uid = text.isascii() and text.isdecimal() and len(text) <= _UID_DIGITS
    try:
        return await reader.job_by_uid(JobUid(int(text) if is_uid else 0), projects)
    except OverflowError:
        raise NotFound(text) from None


async def find_job(reader: Reader, target: str) -> tuple[Job, str]:
    """Find a job that has replicas, and return it with its etag. If `target` is a pipeline, return the
    pipeline's job. Raises NotFound. Raises FailedPrecondition for a tuning job; the message contains the name
    of a job to use instead."""
    work, etag = await find_work(reader, target)
    if isinstance(work, Pipeline):
        try:
            work, etag = await reader.job_by_uid(work.job)
        except NotFound:
            raise FailedPrecondition(
                f"{work.name} has no job yet, or its job was deleted. List the jobs with "
                "`trainshed jobs list`."
            ) from None
    if isinstance(work, Job):
        return work, etag
    if isinstance(work, PipelineJob):
        raise FailedPrecondition(
            f"{work.name} is a pipeline job, and only the jobs of its tasks have replicas. List them with "
            f"`trainshed pipelines describe {work.name.job_id}`."
        )
    assert isinstance(work, TuningJob), "the job of a pipeline is not a pipeline"
    raise FailedPrecondition(
        f"{work.name} is a tuning job, and only the jobs of its trials have replicas. "
        f"{await _trial_job_advice(reader, work)}"
    )


async def _trial_job_advice(reader: Reader, work: TuningJob) -> str:
    """Return advice that contains the name of a trial's job: a running job, or else the newest one."""
    jobs = await descendant_jobs(reader, work.uid)
    if not jobs:
        return "No trial has started yet. Try again later."
    running = [job for job in jobs if not job.state.is_final]
    job = (running or jobs)[0 if running else -1]
    trial = f", the job of trial {job.parent.trial}" if job.parent and job.parent.trial else ""
    return f"Use that job: {job.name}{trial}."


async def descendant_jobs(reader: Reader, uid: JobUid) -> list[Job]:
    """Return all jobs with replicas that a tuning job or pipeline has created, directly or indirectly, oldest
    job first."""
    jobs: list[Job] = []
    for child in await reader.children(uid):
        jobs += [child] if isinstance(child, Job) else await descendant_jobs(reader, child.uid)
    return jobs


def with_link(services: Services, work: Kind) -> Kind:
    """Return a job, tuning job or pipeline whose error contains a link to this service's pages."""
    if work.error is None:
        return work
    message = _add_link(services, work, work.error.message)
    return replace(work, error=replace(work.error, message=message))


def with_links(services: Services, work: Work, entry: TimelineEntry) -> TimelineEntry:
    """Return a timeline entry whose message contains a link to this service's pages."""
    message = _add_link(services, work, entry.message)
    return entry if message == entry.message else replace(entry, message=message)


def _add_link(services: Services, work: Work, message: str) -> str:
    return add_link(message, work.uid, services.settings.pages)


async def cancel_work(services: Services, principal: Principal, work: Work) -> None:
    """Store a request to cancel a job, tuning job or pipeline, and notify the controller. The request may be
    repeated. Raises NotFound and FailedPrecondition. Raises PermissionDenied for a program that has not
    created the job."""
    actor = await actor_of(services.reader, principal)
    await check_cancel(services.reader, actor, work)
    request = CancelRequested(CancelCause.USER, services.now(), actor)
    services.wake(await services.intake.request_cancel(work.name, request))


async def delete_for_user(services: Services, name: JobName) -> Operation:
    """Delete a finished job, tuning job or pipeline with its log, curves and autopsies (kept files of failed
    replicas). Return the finished operation. Raises NotFound, and FailedPrecondition if it has not finished.
    """
    record = finished_operation(services, OperationKind.DELETE, str(name))
    uid = await services.intake.delete_job(name, record)
    services.notices.publish(uid)
    if services.tracking is not None:
        services.tracking.end_views(uid)
    try:
        await services.logs.remove(uid)
    except OSError as error:
        # Only log the error. The job is deleted and its UID is never used again, so the remaining log only
        # occupies disk space.
        _log.warning("the log of the deleted job %s could not be deleted: %s", name, error)
    try:
        await services.points.forget((uid,))
    except OSError as error:
        _log.warning("the curves of the deleted job %s could not be deleted: %s", name, error)
    for autopsy in services.shells.autopsies(uid):
        try:
            await services.shells.delete_autopsy(uid, autopsy.attempt, autopsy.replica)
        except (terminals.TerminalRefused, Unavailable) as refused:
            # Only log the error, for example if an open shell uses the autopsy (the kept files of a failed
            # replica). The service deletes the files after their retention period.
            _log.warning("an autopsy of the deleted job %s could not be deleted yet: %s", name, refused)
    return record


def queue_position(capacity: CapacityView, work: Work) -> int:
    """Return the position of a QUEUED job in the queue, starting at 1. Return 0 in all other states
    (facts/resources#ml)."""
    is_waiting = isinstance(work, Job) and work.state is JobState.QUEUED
    return capacity.position(work.uid) if is_waiting else 0


async def check_cancel(reader: Reader, actor: Actor, work: Work) -> None:
    """Check that the caller may cancel a job. A program may cancel its own job, and jobs that its job has
    created directly or through other jobs. Users may cancel all jobs. Raises PermissionDenied."""
    if actor.job is None:
        return
    ancestor: Work | None = work
    while ancestor is not None:
        if ancestor.uid == actor.job.uid:
            return
        ancestor = await _creating_job(reader, ancestor)
    creator = work.creator if work.creator is not None else "another user"
    raise PermissionDenied(
        f"{actor.email} may cancel only its own job, {actor.job.name}, and jobs that this job has created. "
        f"{creator} created {work.name}. Ask a user of this project to cancel {work.name}."
    )


async def _creating_job(reader: Reader, work: Work) -> Work | None:
    """Return the job whose program has created this job, or the tuning job or pipeline that runs this job.
    Return None if a user created it or the creating job was deleted."""
    if work.creator is None or work.creator.job is None:
        return None
    try:
        creator_job, _ = await reader.job_by_uid(work.creator.job.uid)
    except NotFound:
        return None
    return creator_job


PRIMARY: Final = ReplicaId(0, 0)
OPEN_SHELL: Final = "trainshed.v1.Jobs.Shell"
"""The method whose permission the owner of a link to a shell needs."""


def add_to_trials(call: Call, job: TuningJob, trials: Any) -> None:
    """If a tuning job has web access or dashboard access, add links to its running trials. `trials`: the
    trials in the job's message of either API."""
    links = _links(call.services, call.principal, job.name.project_id)
    shown = call.principal.credential
    if links is None or shown is None or not job.running:
        return
    running = {str(trial.number): trial.job for trial in job.running}
    spec = job.spec.trial
    replicas = spec.replicas() if has_web_access(spec) else ()
    for view in trials:
        # The field name is `id` in Vertex and `trialId` in `ml`.
        number = view.id if "id" in view.DESCRIPTOR.fields_by_name else view.trial_id
        if number in running and view.HasField("start_time"):
            uris = links.shell_links(running[number], job.name.api, replicas, shown)
            view.web_access_uris.update(uris)
            view.web_access_uris.update(_dashboard(links, running[number], spec))


def links_of(services: Services, principal: Principal, job: Job) -> dict[str, str]:
    """Return the links of a running job of either API with web access or dashboard access. Return {} if
    `principal` may not see the links."""
    links, shown = _links(services, principal, job.name.project_id), principal.credential
    if links is None or shown is None:
        return {}
    uris = links.job_links(job, shown) if has_web_access(job.spec) else {}
    is_running = job.state is JobState.RUNNING and any(
        replica.id == PRIMARY and replica.state is ReplicaState.RUNNING for replica in job.replicas
    )
    return {**uris, **(_dashboard(links, job.uid, job.spec) if is_running else {})}


def _dashboard(links: Links, uid: JobUid, spec: JobSpec) -> dict[str, str]:
    """Return the link to the dashboard of the primary replica, or {} if the job has no dashboard."""
    if not has_dashboard(spec):
        return {}
    port = str(terminals.dashboard_port(uid))
    return {f"{log_task_name(spec.api, PRIMARY)}:{port}": links.console_page(uid, port)}


def page_addresses(services: Services, principal: Principal, job: Job) -> dict[str, str]:
    """Return the addresses of an unfinished job's web pages, or {} if `principal` may not open them."""
    links = _links(services, principal, job.name.project_id)
    if links is None or job.state.is_final:
        return {}
    return {name: links.console_page(job.uid, name) for name in terminals.pages_of(job.labels)}


def has_web_access(spec: JobSpec) -> bool:
    """Whether a job of either API has web access."""
    return bool(json.loads(spec.job_json).get("enableWebAccess"))


def has_dashboard(spec: JobSpec) -> bool:
    """Whether a Vertex job has dashboard access."""
    return bool(json.loads(spec.job_json).get("enableDashboardAccess"))


def _links(services: Services, principal: Principal, project: str) -> Links | None:
    may = services.allows_shells and principal.may(PERMISSIONS[OPEN_SHELL], project)
    return services.links if may else None


async def notify_jobs(services: Services, emails: Sequence[str], change: str) -> None:
    """Add an entry about a service account to the timelines of all running jobs with this account, because
    API calls of their programs are now rejected or accepted again. `change`: a participle such as "disabled".
    """
    for email in emails:
        uids = [job.uid for job in services.capacity.placed_jobs() if job.spec.service_account == email]
        text = f"The service account {email} of the job's programs was {change}."
        if change != "enabled again":
            text += " Their API calls are rejected, except for the directories below /gcs."
        await services.intake.add_timeline_entry(uids, TimelineEntry(services.now(), "warning", text))
        for uid in uids:
            services.notices.publish(uid)
