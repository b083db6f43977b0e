"""What clients create in both APIs: list, describe, timeline, cancel, delete; and the status of the
service."""

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
from trainshed.api.calls.paging import (
    Page,
    decode_position,
    encode_token,
    first_page,
    list_jobs,
    page_size,
)
from trainshed.api.calls.services import Services
from trainshed.api.filters.jobs import JobFilter
from trainshed.api.filters.matching import LAST_MOMENT, everything
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
from trainshed.api.trainshed_v1.describing import described, resource_of, seen
from trainshed.api.trainshed_v1.links import link_if_any
from trainshed.api.trainshed_v1.measures import activity, glance, meets, trend
from trainshed.core.errors import FailedPrecondition, InvalidRequest, NotFound, Violation
from trainshed.core.lifecycle.records import person_of
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import default_bucket, normalize_email
from trainshed.core.pipelines import Pipeline
from trainshed.core.printed_measures import Bound, read_bound
from trainshed.core.units import text_micros
from trainshed.core.works import Work
from trainshed.store import audit
from trainshed.store.port import (
    PERSON,
    Column,
    Condition,
    Created,
    Either,
    Equal,
    Every,
    JobQuery,
    Labelled,
)
from trainshed.wire.trainshed_v1 import jobs as records
from trainshed.wire.trainshed_v1.record import Nothing
from trainshed.wire.trainshed_v1.timeline import Timeline

_ALL_PROJECTS: Final = "-"
_ME: Final = "me"
_DEFAULT_PAGE: Final = 50
_LARGEST_PAGE: Final = 500
_MOST_COUNTED: Final = 1000
_READING: Final = 0.2
"""Seconds after which a list reads no further logs for trends; the next list goes on."""
_SEARCHING: Final = 0.5
"""Seconds for which jobs are looked at for their metrics; then a short page tells where to go on."""
_MOST_TIMES: Final = 8
"""How often a parameter may be repeated."""


async def status(call: JsonCall) -> records.Status:
    """`GET /trainshed/v1/status[?project=P]`: return the service's state, and the defaults for clients.
    `bucket` is the default bucket of the project, else of the caller's; it may have to be made first."""
    own, principal = call.services.settings, call.principal
    # Somebody who has rights in one project only means that one.
    usual = (
        own.project if principal.rights.within(own.project) else principal.project or own.project
    )
    project = (call.parameter("project") and _project(call)) or usual
    is_operator = PERMISSIONS["trainshed.v1.Tokens.List"] in principal.rights.everywhere
    lag = call.services.lag()
    return records.Status(
        version=own.version,
        start_time=text_micros(call.services.started or 0),
        principal=call.principal.email,
        apis=("aiplatform.v1", "ml.v1", "logging.v2"),
        project=usual,
        region=own.region,
        bucket=default_bucket(own.project, project),
        accelerators=call.services.capacity.accelerators(),
        engine=dict(call.services.promises()),
        event_loop=records.LoopLag(
            recent_lag=round(lag.recent, 4),
            longest_lag=round(lag.longest, 4),
            computed=round(lag.computed, 4),
        ),
        disk=await _disk(own.data) if is_operator and own.data else UNSET,
        retention_jobs=(own.retention_jobs or "") if is_operator else "",
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
    list what clients made, newest first; `project=-`: of all projects.

    `state`: one or several. `user`: whose, by the address; `me`: the caller's. `label`: with this label, `K`
    with any value of it; may be repeated. `machine`: a text in the type of a machine or accelerator. `since`:
    created at this time or later. `search`: words in the display name, the id or a label. `metric`: with a
    last value within a bound (`val_accuracy>0.9`); may be repeated. For a page some jobs are looked at, so
    that it may be short. `displayName`: exactly this name, of any age at the same cost. `&glance=true`: tell
    what each does at the moment; `&trend=true`: what it measures; `&counts=true`: how many there are in each
    state, whatever else is asked for. `?parent=NAME` in place of the project lists what a tuning job or
    pipeline made: the jobs of its trials, or its job.
    """
    wanted, made_of = _filter(call)
    try:
        bounds = tuple([read_bound(text) for text in _few(call, "metric") if text])
    except ValueError as wrong:
        raise InvalidRequest((Violation("metric", str(wrong)),)) from None
    size = page_size(
        call.number("limit", 0), default=_DEFAULT_PAGE, maximum=_LARGEST_PAGE, field="limit"
    )

    # What the token of a page is bound to, besides whose jobs are listed.
    bound = (*made_of, *map(str, bounds))
    if parent := call.parameter("parent"):
        return await _list_below(call, parent, wanted.passes, size, bound, bounds)
    project = _project(call)
    question = (project or _ALL_PROJECTS, *bound)
    page = await list_jobs(
        call.services.reader,
        JobQuery(project, None, None, limit=_LARGEST_PAGE if bounds else size),
        wanted,
        token=call.parameter("pageToken"),
        question=question,
    )
    page = await _within(call.services, page, bounds, size, question)
    shown = [views.summary(with_link(call.services, job)) for job, _ in page.jobs]
    if call.flag("glance"):
        glances = [await glance(call.services, job) for job, _ in page.jobs]
        shown = [
            structs.replace(view, glance=state, progress=progress or UNSET)
            for view, (state, progress) in zip(shown, glances, strict=True)
        ]
    if call.flag("trend"):
        clock = asyncio.get_running_loop().time
        until = clock() + _READING
        shown = [
            structs.replace(
                view, trend=await trend(call.services, job, bounds, reads=clock() < until)
            )
            for view, (job, _) in zip(shown, page.jobs, strict=True)
        ]
    counts = UNSET
    if call.flag("counts"):
        counts = await call.services.reader.counts(project, tuple(JobState), _MOST_COUNTED)
    return records.JobList(jobs=tuple(shown), next_page_token=page.next_token, counts=counts)


def _few(call: JsonCall, name: str) -> Sequence[str]:
    """Return the values of a parameter that may be repeated. Raises InvalidRequest."""
    values = call.query.get(name, ())
    if len(values) > _MOST_TIMES:
        raise InvalidRequest((Violation(name, f"It may be given {_MOST_TIMES} times at most."),))
    return values


async def _within(
    services: Services, page: Page, bounds: Sequence[Bound], size: int, question: tuple[str, ...]
) -> Page:
    """Return those jobs of a page, at most `size`, that have measured what is within bounds, as far as they
    can be looked at in a short time."""
    if not bounds:
        return page
    kept: list[tuple[Work, str]] = []
    until = asyncio.get_running_loop().time() + _SEARCHING
    for number, (work, etag) in enumerate(page.jobs):
        is_late = number > 0 and asyncio.get_running_loop().time() > until
        if is_late or len(kept) == size:
            before = str(int(page.jobs[number - 1][0].uid))
            return Page(tuple(kept), encode_token(before, *question))
        if await meets(services, work, bounds):
            kept.append((work, etag))
    return Page(tuple(kept), page.next_token)


async def _list_below(  # noqa: PLR0917  as they were read
    call: JsonCall,
    parent: str,
    passes: Callable[[Work], bool],
    size: int,
    bound: tuple[str, ...],
    bounds: Sequence[Bound],
) -> records.JobList:
    question = (parent, *bound)
    after = decode_position(call.parameter("pageToken"), *question)
    reader = call.services.reader
    work, _ = await reader.job(read_job_name(parent, field="parent"))
    children = [
        child
        for child in reversed(await reader.children(work.uid))
        if (not after or child.uid < after) and passes(child)
    ]
    shown, token = first_page(
        children, _LARGEST_PAGE if bounds else size, lambda child: child.uid, *question
    )
    page = Page(tuple([(child, "") for child in shown]), token)
    page = await _within(call.services, page, bounds, size, question)
    return records.JobList(
        jobs=tuple(views.summary(with_link(call.services, child)) for child, _ in page.jobs),
        next_page_token=page.next_token,
    )


async def describe(call: JsonCall) -> records.JobDescription:
    """`GET /trainshed/v1/jobs/{job}`: describe the job in full."""
    work, etag = await find_work(call.services.reader, call.target)
    look = await seen(call.services, work)
    view = await described(call.services, call.principal, look)
    _, progress = await activity(call.services, work)
    return structs.replace(
        view,
        creator=str(work.creator or ""),
        resource=await resource_of(call.services, look.work, etag),
        progress=progress or UNSET,
        tensorboard_uri=await link_if_any(call.services, call.principal, work) or UNSET,
        warnings=await _warnings(call, work),
    )


async def _warnings(call: JsonCall, work: Work) -> tuple[str, ...]:
    """Return the warnings of the replicas of a job, or of a pipeline's job, each once."""
    uid = work.job if isinstance(work, Pipeline) else work.uid
    entries = await call.services.reader.timeline(uid) if uid else ()
    return tuple(dict.fromkeys(e.message for e in entries if e.kind.endswith("_warning")))


async def timeline(call: JsonCall) -> Timeline:
    """`GET /trainshed/v1/jobs/{job}/timeline[?skip=N]`: return what happened to a job. `skip`: omit the first
    N entries, for clients that have them."""
    work, _ = await find_work(call.services.reader, call.target)
    entries = await call.services.reader.timeline(work.uid)
    skipped = min(call.number("skip", 0), len(entries))
    return Timeline(
        name=str(work.name),
        skipped=skipped,
        entries=tuple(
            views.timeline_entry(with_links(call.services, work, entry))
            for entry in entries[skipped:]
        ),
    )


async def cancel(call: JsonCall) -> Nothing:
    """`POST /trainshed/v1/jobs/{job}:cancel`: ask the job to stop. It can be repeated."""
    work, _ = await find_work(call.services.reader, call.target)
    await cancel_work(call.services, call.principal, work)
    return Nothing()


async def cancel_all(call: JsonCall) -> records.CancelledJobs:
    """`POST /trainshed/v1/jobs:cancel`: cancel all jobs of a person, in a project or in all (`-`), or all
    jobs of a project. It can be repeated."""
    services, (sent, faults) = call.services, call.sent(records.JobsOf)
    is_everywhere = sent.project == _ALL_PROJECTS
    project = None if is_everywhere else read_project(call, sent.project, faults)
    user = normalize_email(sent.user)
    if user and (fault := member_fault(member_of(user))):
        faults.add("user", fault)
    if not user and (is_everywhere or not sent.project):
        faults.add("user", "Specify a user, or the project whose jobs to cancel.")
    faults.refuse()
    where: tuple[Condition, ...] = (
        Either(tuple(Equal(Column.STATE, state.value) for state in JobState if not state.is_final)),
        *((Labelled(PERSON, user),) if user else ()),
    )

    def passes(work: Work) -> bool:
        return not work.state.is_final and user in ("", person_of(work.creator))

    live: list[Work] = []
    token: str | None = ""
    while token is not None:
        page = await list_jobs(
            services.reader,
            JobQuery(project, None, None, limit=_LARGEST_PAGE),
            JobFilter(passes, Every(where)),
            token=token,
            question=("cancel",),
        )
        live += [work for work, _ in page.jobs]
        token = page.next_token or None
    if (recorded := audit.concerns(project or "", f"jobs of {user or project}")) is not None:
        recorded.describe(count=len(live))
        await services.access.record()
    cancelled: list[str] = []
    for work in live:
        with suppress(FailedPrecondition, NotFound):  # It has ended meanwhile.
            await cancel_work(services, call.principal, work)
            cancelled.append(str(work.name))
    return records.CancelledJobs(jobs=tuple(cancelled))


async def delete(call: JsonCall) -> Nothing:
    """`DELETE /trainshed/v1/jobs/{job}`: delete a job of either API that is over, with its log, curves and
    autopsies."""
    work, _ = await find_work(call.services.reader, call.target)
    await delete_for_user(call.services, work.name)
    return Nothing()


def _project(call: JsonCall) -> str | None:
    """Return the project that the query names, as the store knows it; None for all projects."""
    return None if call.parameter("project") == _ALL_PROJECTS else queried_project(call)


def _filter(call: JsonCall) -> tuple[JobFilter, tuple[str, ...]]:
    """Return the filter of a list, and what it was made of. Raises InvalidRequest."""
    states = frozenset(map(_state, call.texts("state")))
    labels = [text.partition("=") for text in _few(call, "label")]
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
        of_user = Labelled(PERSON, user)
        tests.append(JobFilter(lambda work: person_of(work.creator) == user, of_user))
    for label in labels:
        key, equals, value = label
        labelled = Labelled(key, value if equals else None)
        tests.append(JobFilter(partial(_is_labelled, label=label), labelled))
    if since is not None:
        created = Created(since, LAST_MOMENT)
        tests.append(JobFilter(lambda work: work.created >= since, created))
    if machine:
        tests.append(JobFilter(partial(_runs_on, machine=machine)))
    where = tuple(test.where for test in tests if test.where is not None)
    # Not `since`: a console counts it back from now, and newest jobs come first.
    made_of = (",".join(sorted(states)), search, display_name, user, machine)

    def passes(work: Work) -> bool:
        return all(test.passes(work) for test in tests)

    wanted = JobFilter(passes if tests else everything, Every(where) if where else None)
    return wanted, (*made_of, *map("".join, labels))


def _mentions(work: Work, word: str) -> bool:
    """Whether the display name, the id or a label holds a word in lower case."""
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
            (Violation("state", f"{text!r} is no state; the states are: {states}."),)
        ) from None
