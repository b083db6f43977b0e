"""Jobs, tuning jobs and pipelines of both APIs: list, describe, timeline, cancel and delete. Also the status
of the service."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec import UNSET, UnsetType, structs

from trainshed.access.permissions import PERMISSIONS
from trainshed.access.policy import member_fault
from trainshed.access.principals import member_of
from trainshed.api.calls.paging import Page, decode_position, encode_token, first_page, list_jobs, page_size
from trainshed.api.calls.services import Services
from trainshed.api.filters.jobs import JobFilter
from trainshed.api.filters.matching import LAST_TIME, matches_all
from trainshed.api.resources.jobs import (
    cancel_work,
    delete_for_user,
    find_work,
    read_job_name,
    with_link,
    with_links,
)
from trainshed.api.trainshed_v1 import views
from trainshed.api.trainshed_v1.call import JsonCall, queried_project, read_project
from trainshed.api.trainshed_v1.describing import describe_work, resource_of, state_of
from trainshed.api.trainshed_v1.links import link_if_any
from trainshed.api.trainshed_v1.measures import current_activity, meets_bounds, progress_of, trend
from trainshed.core.errors import FailedPrecondition, InvalidRequest, NotFound, Violation
from trainshed.core.lifecycle.records import person_of
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import default_bucket, normalize_email
from trainshed.core.pipelines import Pipeline
from trainshed.core.printed_measures import Bound, read_bound
from trainshed.core.units import text_micros
from trainshed.core.works import Work
from trainshed.store import audit
from trainshed.store.port import PERSON, Column, Condition, Created, Either, Equal, Every, HasLabel, JobQuery
from trainshed.wire.trainshed_v1 import jobs as records
from trainshed.wire.trainshed_v1.record import Nothing
from trainshed.wire.trainshed_v1.timeline import Timeline

_ALL_PROJECTS: Final = "-"
_ME: Final = "me"
_DEFAULT_PAGE_SIZE: Final = 50
_MAX_PAGE_SIZE: Final = 500
_MAX_COUNT: Final = 1000
_TREND_TIME_LIMIT: Final = 0.2
"""Maximum time in seconds in which a list reads logs for trends. The next request continues with the
remaining logs."""
_METRIC_TIME_LIMIT: Final = 0.5
"""Maximum time in seconds in which a list reads the metrics of a page's jobs. After that, the response is a
short page with a token."""
_MAX_REPETITIONS: Final = 8
"""Maximum number of values of a repeated parameter."""


async def status(call: JsonCall) -> records.Status:
    """`GET /trainshed/v1/status[?project=P]`: return the service's state, and the defaults for clients.
    `bucket` is the default bucket of the project. It may not exist yet. Without `project`, the project is the
    caller's only project or the default project."""
    settings, principal = call.services.settings, call.principal
    # For a user with rights in only one project, that project is the default.
    default_project = (
        settings.project
        if principal.rights.within(settings.project)
        else principal.project or settings.project
    )
    project = (call.parameter("project") and _project(call)) or default_project
    is_operator = PERMISSIONS["trainshed.v1.Tokens.List"] in principal.rights.everywhere
    lag = call.services.lag()
    return records.Status(
        version=settings.version,
        start_time=text_micros(call.services.start_time or 0),
        principal=call.principal.email,
        apis=("aiplatform.v1", "ml.v1", "logging.v2"),
        project=default_project,
        region=settings.region,
        bucket=default_bucket(settings.project, project),
        accelerators=call.services.capacity.accelerators(),
        engine=dict(call.services.promises()),
        event_loop=records.LoopLag(
            recent_lag=round(lag.recent, 4),
            longest_lag=round(lag.longest, 4),
            computed=round(lag.cpu_time, 4),
        ),
        disk=await _disk(settings.data) if is_operator and settings.data else UNSET,
        retention_jobs=(settings.retention_jobs or "") if is_operator else "",
        notifications=await _outbox(call.services) if is_operator else UNSET,
    )


async def _disk(data: str) -> records.Disk | UnsetType:
    try:
        disk = await asyncio.to_thread(shutil.disk_usage, data)
    except OSError:
        return UNSET
    return records.Disk(total_bytes=disk.total, free_bytes=disk.free)


async def _outbox(services: Services) -> records.Outbox | UnsetType:
    if services.outbox is None:
        return UNSET
    waiting, failing = await services.outbox.count()
    return records.Outbox(targets=services.settings.notify, waiting=waiting, failing=failing)


async def list_(call: JsonCall) -> records.JobList:
    """`GET
    /trainshed/v1/jobs?project=P[&state=S][&user=U][&label=K=V][&machine=TEXT][&since=TIME][&search=TEXT][&metric=BOUND][&displayName=N][&limit=N][&pageToken=T]`:
    list jobs, tuning jobs and pipelines, newest first. `project=-` selects all projects. `?parent=NAME`
    instead of the project lists the jobs of a tuning job or pipeline.

    Filters: `state` is one state or several. `user` is an address, or `me` for the caller. `label` is a
    label, or only its key `K` for any value; it may be repeated. `machine` is part of a machine type or
    accelerator type. `since` is the earliest creation time. `search` contains words in the display name, the
    ID or a label. `metric` is a bound on the last value of a metric (`val_accuracy>0.9`); it may be repeated,
    and pages may be short. `displayName` is the exact display name; such jobs are found quickly even if they
    are old.

    Additional results: `&glance=true` for the current activity of each job, `&trend=true` for a
    metric of each job, `&counts=true` for the number of jobs in each state, to which the filters do not
    apply.
    """
    job_filter, filter_texts = _filter(call)
    try:
        bounds = tuple([read_bound(text) for text in _repeated_values(call, "metric") if text])
    except ValueError as wrong:
        raise InvalidRequest((Violation("metric", str(wrong)),)) from None
    size = page_size(
        call.number("limit", 0), default=_DEFAULT_PAGE_SIZE, maximum=_MAX_PAGE_SIZE, field="limit"
    )

    # A page token is valid only together with these values, and with the same project, or the same tuning job
    # or pipeline (`parent`).
    bound_texts = (*filter_texts, *map(str, bounds))
    if parent := call.parameter("parent"):
        return await _list_children(call, parent, job_filter.passes, size, bound_texts, bounds)
    project = _project(call)
    question = (project or _ALL_PROJECTS, *bound_texts)
    page = await list_jobs(
        call.services.reader,
        JobQuery(project, None, None, limit=_MAX_PAGE_SIZE if bounds else size),
        job_filter,
        token=call.parameter("pageToken"),
        question=question,
    )
    page = await _filter_by_metrics(call.services, page, bounds, size, question)
    shown = [views.summary(with_link(call.services, job)) for job, _ in page.jobs]
    if call.flag("glance"):
        glances = [await current_activity(call.services, job) for job, _ in page.jobs]
        shown = [
            structs.replace(view, glance=state, progress=progress or UNSET)
            for view, (state, progress) in zip(shown, glances, strict=True)
        ]
    if call.flag("trend"):
        clock = asyncio.get_running_loop().time
        until = clock() + _TREND_TIME_LIMIT
        shown = [
            structs.replace(view, trend=await trend(call.services, job, bounds, reads=clock() < until))
            for view, (job, _) in zip(shown, page.jobs, strict=True)
        ]
    counts = UNSET
    if call.flag("counts"):
        counts = await call.services.reader.counts(project, tuple(JobState), _MAX_COUNT)
    return records.JobList(jobs=tuple(shown), next_page_token=page.next_token, counts=counts)


def _repeated_values(call: JsonCall, name: str) -> Sequence[str]:
    """Return the values of a parameter that may be repeated. Raises InvalidRequest."""
    values = call.query.get(name, ())
    if len(values) > _MAX_REPETITIONS:
        raise InvalidRequest(
            (Violation(name, f"The parameter may be repeated at most {_MAX_REPETITIONS} times."),)
        )
    return values


async def _filter_by_metrics(
    services: Services, page: Page, bounds: Sequence[Bound], size: int, question: tuple[str, ...]
) -> Page:
    """Return at most `size` jobs of a page: the jobs whose metrics meet all bounds. After _METRIC_TIME_LIMIT,
    no further jobs of the page are read."""
    if not bounds:
        return page
    matching: list[tuple[Work, str]] = []
    until = asyncio.get_running_loop().time() + _METRIC_TIME_LIMIT
    for number, (work, etag) in enumerate(page.jobs):
        is_late = number > 0 and asyncio.get_running_loop().time() > until
        if is_late or len(matching) == size:
            before = str(int(page.jobs[number - 1][0].uid))
            return Page(tuple(matching), encode_token(before, *question))
        if await meets_bounds(services, work, bounds):
            matching.append((work, etag))
    return Page(tuple(matching), page.next_token)


async def _list_children(  # noqa: PLR0917  parts of one request
    call: JsonCall,
    parent: str,
    passes: Callable[[Work], bool],
    size: int,
    bound_texts: tuple[str, ...],
    bounds: Sequence[Bound],
) -> records.JobList:
    question = (parent, *bound_texts)
    after = decode_position(call.parameter("pageToken"), *question)
    reader = call.services.reader
    work, _ = await reader.job(read_job_name(parent, field="parent"))
    children = [
        child
        for child in reversed(await reader.children(work.uid))
        if (not after or child.uid < after) and passes(child)
    ]
    shown, token = first_page(
        children, _MAX_PAGE_SIZE if bounds else size, lambda child: child.uid, *question
    )
    page = Page(tuple([(child, "") for child in shown]), token)
    page = await _filter_by_metrics(call.services, page, bounds, size, question)
    return records.JobList(
        jobs=tuple(views.summary(with_link(call.services, child)) for child, _ in page.jobs),
        next_page_token=page.next_token,
    )


async def describe(call: JsonCall) -> records.JobDescription:
    """`GET /trainshed/v1/jobs/{job}`: return the full description of a job."""
    work, etag = await find_work(call.services.reader, call.target)
    state = await state_of(call.services, work)
    view = await describe_work(call.services, call.principal, state)
    _, progress = await progress_of(call.services, work)
    return structs.replace(
        view,
        creator=str(work.creator or ""),
        resource=await resource_of(call.services, state.work, etag),
        progress=progress or UNSET,
        tensorboard_uri=await link_if_any(call.services, call.principal, work) or UNSET,
        warnings=await _warnings(call, work),
    )


async def _warnings(call: JsonCall, work: Work) -> tuple[str, ...]:
    """Return the warnings of the replicas of a job, without duplicates. For a pipeline, return those of its
    job."""
    uid = work.job if isinstance(work, Pipeline) else work.uid
    entries = await call.services.reader.timeline(uid) if uid else ()
    return tuple(dict.fromkeys(e.message for e in entries if e.kind.endswith("_warning")))


async def timeline(call: JsonCall) -> Timeline:
    """`GET /trainshed/v1/jobs/{job}/timeline[?skip=N]`: return the history of a job. With `skip`, omit the
    first N entries, because the client already has them."""
    work, _ = await find_work(call.services.reader, call.target)
    entries = await call.services.reader.timeline(work.uid)
    skipped = min(call.number("skip", 0), len(entries))
    return Timeline(
        name=str(work.name),
        skipped=skipped,
        entries=tuple(
            views.timeline_entry(with_links(call.services, work, entry)) for entry in entries[skipped:]
        ),
    )


async def cancel(call: JsonCall) -> Nothing:
    """`POST /trainshed/v1/jobs/{job}:cancel`: request the cancellation of a job. May be repeated."""
    work, _ = await find_work(call.services.reader, call.target)
    await cancel_work(call.services, call.principal, work)
    return Nothing()


async def cancel_all(call: JsonCall) -> records.CancelledJobs:
    """`POST /trainshed/v1/jobs:cancel`: cancel all jobs of a user in one project or in all projects (`-`).
    Without a user, cancel all jobs of one project. May be repeated."""
    services, (sent, faults) = call.services, call.read_body(records.JobsOf)
    is_everywhere = sent.project == _ALL_PROJECTS
    project = None if is_everywhere else read_project(call, sent.project, faults)
    user = normalize_email(sent.user)
    if user and (fault := member_fault(member_of(user))):
        faults.add("user", fault)
    if not user and (is_everywhere or not sent.project):
        faults.add("user", "Specify a user, or the project whose jobs to cancel.")
    faults.refuse()
    conditions: tuple[Condition, ...] = (
        Either(tuple(Equal(Column.STATE, state.value) for state in JobState if not state.is_final)),
        *((HasLabel(PERSON, user),) if user else ()),
    )

    def passes(work: Work) -> bool:
        return not work.state.is_final and user in ("", person_of(work.creator))

    unfinished: list[Work] = []
    token: str | None = ""
    while token is not None:
        page = await list_jobs(
            services.reader,
            JobQuery(project, None, None, limit=_MAX_PAGE_SIZE),
            JobFilter(passes, Every(conditions)),
            token=token,
            question=("cancel",),
        )
        unfinished += [work for work, _ in page.jobs]
        token = page.next_token or None
    if (recorded := audit.set_subject(project or "", f"jobs of {user or project}")) is not None:
        recorded.describe(count=len(unfinished))
        await services.access.record()
    cancelled: list[str] = []
    for work in unfinished:
        with suppress(FailedPrecondition, NotFound):  # Skip a job that has ended in the meantime.
            await cancel_work(services, call.principal, work)
            cancelled.append(str(work.name))
    return records.CancelledJobs(jobs=tuple(cancelled))


async def delete(call: JsonCall) -> Nothing:
    """`DELETE /trainshed/v1/jobs/{job}`: delete a finished job of either API with its log, curves and
    autopsies (kept files of failed replicas)."""
    work, _ = await find_work(call.services.reader, call.target)
    await delete_for_user(call.services, work.name)
    return Nothing()


def _project(call: JsonCall) -> str | None:
    """Return the project in the query as the store expects it; None = all projects."""
    return None if call.parameter("project") == _ALL_PROJECTS else queried_project(call)


def _filter(call: JsonCall) -> tuple[JobFilter, tuple[str, ...]]:
    """Return the filter of a list, and the values of its parameters. Raises InvalidRequest."""
    states = frozenset(map(_state, call.texts("state")))
    labels = [text.partition("=") for text in _repeated_values(call, "label")]
    display_name, search = call.parameter("displayName"), call.parameter("search")
    user, machine = call.parameter("user"), call.parameter("machine").lower()
    user = call.principal.email if user == _ME else normalize_email(user)
    since = call.moment("since", None)
    tests = [JobFilter(partial(_mentions, word=word)) for word in search.lower().split()]
    if states:
        either = Either(tuple(Equal(Column.STATE, state.value) for state in sorted(states)))
        tests.append(JobFilter(lambda work: work.state in states, either))
    if display_name:
        of_name = Equal(Column.DISPLAY_NAME, display_name)
        tests.append(JobFilter(lambda work: work.display_name == display_name, of_name))
    if user:
        of_user = HasLabel(PERSON, user)
        tests.append(JobFilter(lambda work: person_of(work.creator) == user, of_user))
    for label in labels:
        key, equals, value = label
        labelled = HasLabel(key, value if equals else None)
        tests.append(JobFilter(partial(_is_labelled, label=label), labelled))
    if since is not None:
        created = Created(since, LAST_TIME)
        tests.append(JobFilter(lambda work: work.created >= since, created))
    if machine:
        tests.append(JobFilter(partial(_runs_on, machine=machine)))
    conditions = tuple(test.where for test in tests if test.where is not None)
    # `since` is not part of a token, because the console computes it from the current time, and the newest
    # jobs are listed first.
    filter_texts = (",".join(sorted(states)), search, display_name, user, machine)

    def passes(work: Work) -> bool:
        return all(test.passes(work) for test in tests)

    job_filter = JobFilter(passes if tests else matches_all, Every(conditions) if conditions else None)
    return job_filter, (*filter_texts, *map("".join, labels))


def _mentions(work: Work, word: str) -> bool:
    """Whether the display name, the ID or a label contains `word`, ignoring case. `word` must be in lower
    case."""
    return (
        word in work.display_name.lower()
        or word in work.name.job_id.lower()
        or any(word in f"{key}={value}".lower() for key, value in work.labels)
    )


def _is_labelled(work: Work, label: tuple[str, str, str]) -> bool:
    key, equals, value = label
    return any(key == own and (not equals or value == of) for own, of in work.labels)


def _runs_on(work: Work, machine: str) -> bool:
    return any(machine in kind.lower() for kinds in views.machines(work) for kind in kinds)


def _state(text: str) -> JobState:
    try:
        word = text.upper().removeprefix("JOB_STATE_").removeprefix("PIPELINE_STATE_")
        return JobState(word.replace("PENDING", "PREPARING"))
    except ValueError:
        states = ", ".join(JobState)
        raise InvalidRequest(
            (Violation("state", f"{text!r} is not a state. Use one of: {states}."),)
        ) from None
