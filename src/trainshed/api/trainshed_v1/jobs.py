"""Jobs of both APIs: list, describe, timeline, cancel. Answers are described in `trainshed_v1.views`."""

from typing import Any, Final

from trainshed.api.jobs import cancel_for_user, queue_position, read_job_name
from trainshed.api.paging import list_jobs, page_size
from trainshed.api.parents import ProjectName
from trainshed.api.services import Services
from trainshed.api.trainshed_v1 import views
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.chronicle import chronicle
from trainshed.api.trainshed_v1.chronicle_views import chronicle_view
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.store.port import JobQuery, Reader

_ALL_PROJECTS: Final = "-"
_DEFAULT_PAGE: Final = 50
_LARGEST_PAGE: Final = 500


async def status(call: JsonCall) -> dict[str, Any]:
    """`GET /trainshed/v1/status`: `{version, principal, apis, project, region, bucket}`; the last three are
    what clients take by default."""
    settings = call.services.settings
    return {
        "version": settings.version,
        "principal": call.principal.email,
        "apis": ["aiplatform.v1", "ml.v1", "logging.v2"],
        "project": settings.project,
        "region": settings.region,
        "bucket": settings.bucket,
    }


async def list_(call: JsonCall) -> dict[str, Any]:
    """`GET /trainshed/v1/jobs?project=P[&state=S][&limit=N][&pageToken=T]`: `{jobs: [summary],
    nextPageToken}`, newest first; `project=-`: of all projects. A short page with a token means that there
    is more to look at."""
    project = _project(call.parameter("project"))
    state = _state(call.parameter("state"))
    size = page_size(
        call.number("limit"), default=_DEFAULT_PAGE, maximum=_LARGEST_PAGE, field="limit"
    )
    page = await list_jobs(
        call.services.reader,
        JobQuery(project, None, None, limit=size),
        lambda job: state is None or job.state is state,
        token=call.parameter("pageToken"),
        question=(project, call.parameter("state")),
    )
    return {
        "jobs": [views.summary(job) for job, _ in page.jobs],
        "nextPageToken": page.next_token,
    }


async def describe(call: JsonCall) -> dict[str, Any]:
    """`GET /trainshed/v1/jobs/{job}`: the description."""
    job, etag = await find_job(call.services.reader, call.target)
    return await described(call.services, job, etag)


async def described(services: Services, job: Job, etag: str) -> dict[str, Any]:
    """The job's description, with what is true of its room now."""
    timeline = await services.reader.timeline(job.uid)
    if job.state.is_final:
        return views.description(job, etag, timeline)
    room = services.room
    return views.description(job, etag, timeline, room.why(job.uid), queue_position(room, job))


async def timeline(call: JsonCall) -> dict[str, Any]:
    """`GET /trainshed/v1/jobs/{job}/timeline`: `{name, entries: [{at, kind, message, details}], attempts, counters}`; the last
    two tell the same by attempts (`chronicle_views`)."""
    job, _ = await find_job(call.services.reader, call.target)
    entries = await call.services.reader.timeline(job.uid)
    return {
        "name": str(job.name),
        "entries": [views.timeline_entry(entry) for entry in entries],
        **chronicle_view(chronicle(entries), job.name.api),
    }


async def cancel(call: JsonCall) -> dict[str, Any]:
    """`POST /trainshed/v1/jobs/{job}:cancel`: `{}`; once more is fine."""
    services = call.services
    job, _ = await find_job(services.reader, call.target)
    await cancel_for_user(services, job.name)
    return {}


async def find_job(reader: Reader, target: str) -> tuple[Job, str]:
    """The job and its etag by full name, by uid, or by job id (the newest of that id). Raises NotFound."""
    if "/" in target:
        return await reader.job(read_job_name(target, field="job"))
    if target.isdecimal() and len(target) <= 19:
        try:
            return await reader.job_by_uid(JobUid(int(target)))
        except (NotFound, OverflowError):
            pass
    return await reader.find(target)


def _project(text: str) -> str:
    """The project id that the store knows; "" for all projects."""
    if text == _ALL_PROJECTS:
        return ""
    return ProjectName.parse(f"projects/{text}", field="project").project_id


def _state(text: str) -> JobState | None:
    if not text:
        return None
    try:
        return JobState(text.upper().removeprefix("JOB_STATE_").replace("PENDING", "PREPARING"))
    except ValueError:
        states = ", ".join(JobState)
        raise InvalidRequest(
            (Violation("state", f"{text!r} is no state; the states are: {states}."),)
        ) from None
