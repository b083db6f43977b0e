"""What the APIs share for a job, tuning job or pipeline that a request names: read its name, find it, cancel
it, delete it, tell its place in the queue.

Jobs made with `enableWebAccess` show links to shells while they run (`webAccessUris`, facts/resources). A
link opens a shell for everybody who has it, so only callers who may open shells get any, of their own.
Programs, which may read the jobs of their project, see none.
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
from trainshed.api.resources.operations import done_at_once
from trainshed.core import terminals
from trainshed.core.errors import (
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    Unavailable,
    Violation,
)
from trainshed.core.failure.messages import linked
from trainshed.core.job import JobSpec
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, TimelineEntry
from trainshed.core.lifecycle.records import Actor, Job
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.names import Api, Collection, JobName, JobUid, ReplicaId, log_task_name
from trainshed.core.pipelines import Pipeline
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.store.records import Operation, OperationKind
from trainshed.store.sqlite.reader import Reader

_log = logging.getLogger("trainshed.api")

RESOURCES: Final[Mapping[Collection, str]] = {
    Collection.CUSTOM_JOBS: "CustomJob",
    Collection.TUNING_JOBS: "HyperparameterTuningJob",
    Collection.PIPELINES: "TrainingPipeline",
}
"""What the public texts call a member of each collection."""

Kind = TypeVar("Kind", bound=Work)
_UID_DIGITS = 19


def read_job_name(text: str, *, field: str = "name") -> JobName:
    """Return the job name, of either API, in `field`. Raises InvalidRequest for anything else."""
    try:
        return JobName.parse(text)
    except ValueError as error:
        raise InvalidRequest((Violation(field, f"{error}."),)) from None


def read_vertex_name(text: str, collection: Collection) -> JobName:
    """Return the name of a member of `collection`. Raises InvalidRequest for an invalid name, NotFound for
    the name of something else."""
    name = read_job_name(text)
    if name.api is not Api.VERTEX:
        other = "an ml v1 job"
    elif name.collection is not collection:
        other = f"a {RESOURCES[name.collection]}"
    else:
        return name
    raise NotFound(f"{RESOURCES[collection]} {text!r} was not found: it is the name of {other}.")


async def read_work(reader: Reader, name: JobName, kind: type[Kind]) -> tuple[Kind, str]:
    """Return what is stored under a name, with its etag. Raises NotFound, also for something of another
    kind."""
    work, etag = await reader.job(name)
    return of_kind(work, kind), etag


def of_kind(work: Work, kind: type[Kind]) -> Kind:
    """Return the work itself if it is of `kind`. Raises NotFound if it is not."""
    if not isinstance(work, kind):
        is_ml = work.name.api is Api.ML
        word = "job of the ml v1 API" if is_ml else RESOURCES[work.name.collection]
        raise NotFound(f"{work.name} was not found as a {kind.__name__}: it is a {word}.")
    return work


async def find_work(reader: Reader, target: str, projects: Sequence[str] = ()) -> tuple[Work, str]:
    """Find a work by full name, or by uid or job id (the newest of that id) in `projects`, if any are given,
    and return it with its etag. Raises NotFound."""
    if "/" in target:
        return await reader.job(read_job_name(target, field="job"))
    with suppress(NotFound):
        return await find_by_uid(reader, target, projects)
    return await reader.find(target, projects)


async def find_by_uid(reader: Reader, text: str, projects: Sequence[str] = ()) -> tuple[Work, str]:
    """Return the work with this uid, in `projects` if any are given, with its etag. Raises NotFound, also for
    what is no uid."""
    is_uid = text.isascii() and text.isdecimal() and len(text) <= _UID_DIGITS
    try:
        return await reader.job_by_uid(JobUid(int(text) if is_uid else 0), projects)
    except OverflowError:
        raise NotFound(text) from None


async def find_job(reader: Reader, target: str) -> tuple[Job, str]:
    """Find a job with replicas of its own, and return it with its etag; a pipeline stands for its job. Raises
    NotFound, and FailedPrecondition for a tuning job, which names a job to ask about instead."""
    work, etag = await find_work(reader, target)
    if isinstance(work, Pipeline):
        try:
            work, etag = await reader.job_by_uid(work.job)
        except NotFound:
            raise FailedPrecondition(
                f"{work.name} has no job yet, or its job was deleted."
            ) from None
    if isinstance(work, Job):
        return work, etag
    assert isinstance(work, TuningJob), "the job of a pipeline is no pipeline"
    raise FailedPrecondition(
        f"{work.name} is a tuning job, and only its trials' jobs have replicas. {await _advice(reader, work)}"
    )


async def _advice(reader: Reader, work: TuningJob) -> str:
    """Return a sentence that names a trial's job: a running one, else the newest."""
    jobs = await jobs_below(reader, work.uid)
    if not jobs:
        return "It has started none yet. Try again when it has."
    running = [job for job in jobs if not job.state.is_final]
    chosen = (running or jobs)[0 if running else -1]
    trial = (
        f", the job of trial {chosen.parent.trial}" if chosen.parent and chosen.parent.trial else ""
    )
    return f"Use that job: {chosen.name}{trial}."


async def jobs_below(reader: Reader, uid: JobUid) -> list[Job]:
    """Return every job with replicas that a work has made, itself or through another one, oldest first."""
    jobs: list[Job] = []
    for child in await reader.children(uid):
        jobs += [child] if isinstance(child, Job) else await jobs_below(reader, child.uid)
    return jobs


def with_link(services: Services, work: Kind) -> Kind:
    """Return the work with an error that links to this service's pages."""
    if work.error is None:
        return work
    message = _linked(services, work, work.error.message)
    return replace(work, error=replace(work.error, message=message))


def with_links(services: Services, work: Work, entry: TimelineEntry) -> TimelineEntry:
    """Return an entry of the work's timeline with such a link."""
    message = _linked(services, work, entry.message)
    return entry if message == entry.message else replace(entry, message=message)


def _linked(services: Services, work: Work, message: str) -> str:
    return linked(message, work.uid, services.settings.pages)


async def cancel_work(services: Services, principal: Principal, work: Work) -> None:
    """Store the wish to cancel and tell the controller. It can be repeated. Raises NotFound,
    FailedPrecondition, PermissionDenied (a program has not made the work)."""
    actor = await actor_of(services.reader, principal)
    await refuse_cancel(services.reader, actor, work)
    wish = CancelRequested(CancelCause.USER, services.now(), actor)
    services.wake(await services.intake.request_cancel(work.name, wish))


async def delete_for_user(services: Services, name: JobName) -> Operation:
    """Delete a work that is over, with its log, curves and autopsies; returns the finished operation. Raises
    NotFound, FailedPrecondition (still running)."""
    record = done_at_once(services, OperationKind.DELETE, str(name))
    uid = await services.intake.delete_job(name, record)
    services.notices.publish(uid)
    if services.tracking is not None:
        services.tracking.end_views(uid)
    try:
        await services.logs.remove(uid)
    except OSError as error:
        # The job is deleted and its uid is never reused: what is left of its log only takes space.
        _log.warning("the log of the deleted job %s could not be deleted: %s", name, error)
    try:
        await services.points.forget((uid,))
    except OSError as error:
        _log.warning("the curves of the deleted job %s could not be deleted: %s", name, error)
    for autopsy in services.shells.autopsies(uid):
        try:
            await services.shells.delete_autopsy(uid, autopsy.attempt, autopsy.replica)
        except (terminals.TerminalRefused, Unavailable) as refused:
            # Somebody has a shell open in it; it is deleted when its time is over.
            _log.warning(
                "an autopsy of the deleted job %s could not be deleted yet: %s", name, refused
            )
    return record


def queue_position(capacity: CapacityView, work: Work) -> int:
    """Return the place of a QUEUED job among those that wait, 1 = next; 0 for every other work
    (facts/resources#ml)."""
    waits = isinstance(work, Job) and work.state is JobState.QUEUED
    return capacity.position(work.uid) if waits else 0


async def refuse_cancel(reader: Reader, actor: Actor, work: Work) -> None:
    """Raise PermissionDenied for a program unless the work is its own job, or one that it has made, itself or
    through a job that it made. People may cancel everything."""
    if actor.job is None:
        return
    ancestor: Work | None = work
    while ancestor is not None:
        if ancestor.uid == actor.job.uid:
            return
        ancestor = await _maker(reader, ancestor)
    made_by = work.creator if work.creator is not None else "another user"
    raise PermissionDenied(
        f"{actor.email} may cancel its own job, {actor.job.name}, and jobs that this job created. "
        f"{made_by} created {work.name}. Ask the owner or another user with a token of this project to "
        "cancel it"
    )


async def _maker(reader: Reader, work: Work) -> Work | None:
    """Return the job whose program made a work or its parent; None if a person did, or it was deleted."""
    if work.creator is None or work.creator.job is None:
        return None
    try:
        maker, _ = await reader.job_by_uid(work.creator.job.uid)
    except NotFound:
        return None
    return maker


PRIMARY: Final = ReplicaId(0, 0)
OPEN: Final = "trainshed.v1.Jobs.Shell"
"""The method that a link stands for."""


def add_to_trials(call: Call, job: TuningJob, trials: Any) -> None:
    """Add the links of the running trials of a tuning job that was made with access to shells or to a
    dashboard, in either API's view."""
    links = _links(call.services, call.principal, job.name.project_id)
    shown = call.principal.credential
    if links is None or shown is None or not job.running:
        return
    running = {str(trial.number): trial.job for trial in job.running}
    spec = job.spec.trial
    replicas = spec.replicas() if asked_for(spec) else ()
    for view in trials:
        # `id` in one API, `trialId` in the other.
        number = view.id if "id" in view.DESCRIPTOR.fields_by_name else view.trial_id
        if number in running and view.HasField("start_time"):
            uris = links.of_replicas(running[number], job.name.api, replicas, shown)
            view.web_access_uris.update(uris)
            view.web_access_uris.update(_dashboard(links, running[number], spec))


def links_of(services: Services, principal: Principal, job: Job) -> dict[str, str]:
    """Return the links of a running job of either API that was made with access to shells or to a dashboard;
    {} if `principal` may not see them."""
    links, shown = _links(services, principal, job.name.project_id), principal.credential
    if links is None or shown is None:
        return {}
    uris = links.of_job(job, shown) if asked_for(job.spec) else {}
    is_running = job.state is JobState.RUNNING and any(
        replica.id == PRIMARY and replica.state is ReplicaState.RUNNING for replica in job.replicas
    )
    return {**uris, **(_dashboard(links, job.uid, job.spec) if is_running else {})}


def _dashboard(links: Links, uid: JobUid, spec: JobSpec) -> dict[str, str]:
    """Return the link to the dashboard of the primary replica, if the job was made with one."""
    if not has_dashboard(spec):
        return {}
    port = str(terminals.dashboard_port(uid))
    return {f"{log_task_name(spec.api, PRIMARY)}:{port}": links.to_page(uid, port)}


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


def has_dashboard(spec: JobSpec) -> bool:
    """Whether a job was made with access to a dashboard, which only Vertex has."""
    return bool(json.loads(spec.job_json).get("enableDashboardAccess"))


def _links(services: Services, principal: Principal, project: str) -> Links | None:
    may = services.allows_shells and principal.may(PERMISSIONS[OPEN], project)
    return services.links if may else None


async def tell_jobs(services: Services, emails: Sequence[str], what: str) -> None:
    """Have the timelines of jobs that run as these accounts say what has become of them, since nothing else
    tells why calls of their programs are refused."""
    for email in emails:
        uids = [job.uid for job in services.capacity.holding() if job.spec.service_account == email]
        text = f"The service account {email}, as which the programs run, was {what}."
        if what != "enabled again":
            text += " Their API calls are rejected, except for the directories below /gcs."
        await services.intake.tell(uids, TimelineEntry(services.now(), "warning", text))
        for uid in uids:
            services.notices.publish(uid)
