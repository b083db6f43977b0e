"""Logging v2 `entries:list` and `entries:write` (facts/packaging#endpoints, spec/clients#log-pages).

`entries:list` returns the lines of replicas and of the service, ordered by time. If the filter selects the
audit log (`cloudaudit.googleapis.com/activity`), it returns only the audit log, because readers of a job's
log may lack the permission for the audit log.

Clients page by time. They never receive an entry whose time is before their position. The response about a
running job therefore ends shortly before the current time, because recent lines of other replicas may not be
in their files yet.

With `entries:write`, a program writes entries with google-cloud-logging. They become lines in the log of its
own replica, in the order of arrival, with severity and payload. Log names, resources and times in the entries
are ignored. Only programs can write entries.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from typing import Any, Final, assert_never

from google.protobuf.message import Message
from msgspec import Struct

from trainshed.access.job_tokens import JobClaims
from trainshed.access.permissions import authorize
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.paging import Scan, decode_token, encode_token, page_size, parse_position
from trainshed.api.calls.parents import reject_numbers
from trainshed.api.calls.services import Services
from trainshed.api.filters.matching import LAST_TIME
from trainshed.api.filters.syntax import FilterError
from trainshed.api.logging_v2.entry import Entry, audit_entry, message, replica_entry, service_entries
from trainshed.api.logging_v2.filters import LogFilter, compile_log_filter
from trainshed.api.logging_v2.special_fields import FIELDS, LABELS
from trainshed.api.resources.jobs import find_by_uid, with_links
from trainshed.core.errors import FailedPrecondition, InvalidRequest, NotFound, Unavailable, Violation
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import (
    SERVICE,
    SERVICE_TASK,
    Api,
    JobName,
    JobUid,
    ReplicaId,
    log_task_name,
    project_number,
)
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.pipelines import Pipeline
from trainshed.core.tuning.records import TuningJob
from trainshed.core.units import Nanos
from trainshed.core.works import Work
from trainshed.store.audit import AuditRow
from trainshed.store.port import JobQuery
from trainshed.store.sqlite.reader import Reader
from trainshed.wire import json as wire_json
from trainshed.wire import pool

SERVICE_METHODS: Final = "google.logging.v2.LoggingServiceV2"
_DIAGNOSTIC: Final = "logging.googleapis.com/diagnostic"
"""A payload field by which a client library identifies itself once per program. Entries with only this field
are ignored."""
_DEFAULT_PAGE_SIZE: Final = 50
_MAX_PAGE_SIZE: Final = 1_000
_SCAN_LIMIT: Final = 20_000
"""Maximum number of entries that one request reads. Beyond it, the request returns a short page with a token.
"""
_MAX_PAGE_LENGTH: Final = 4 << 20
"""Maximum number of characters in the lines of a page. The entry that would exceed the limit is the first
entry of the next page."""
_BATCH_SIZE: Final = 100
"""Number of entries that are filtered together, outside the event loop."""
_MAX_SEARCHED_JOBS: Final = 100
"""If a filter specifies no job, this number of the project's newest jobs is searched."""
Position = tuple[int, str]
"""Position of an entry: its time in nanoseconds and its insert ID."""
_SETTLE_TIME: Final = 10**9
"""Maximum delay in nanoseconds until a written line is in its file."""
_CHUNK_SIZE: Final = 1_000
"""Number of lines per read."""
_FIRST_CHUNK_SIZE: Final = 50
"""Number of lines in the first read of a job. If several jobs are read, most of them have no entry on the
requested page."""
_CLIENT_MARGIN: Final = 8 * 10**9
"""Margin in nanoseconds. gcloud requests only entries that are at least five seconds old, because late lines
may still arrive. The request itself also takes some time. If the requested end time is more recent than this
margin, the service assumes that gcloud has omitted the newest entries. It then returns all entries of a
finished job."""


class Span(Struct, frozen=True):
    """Selects entries of a job to read, with start <= time < end."""

    #: Start time in nanoseconds since the epoch.
    start: Nanos
    #: End time in nanoseconds since the epoch, exclusive.
    end: Nanos
    #: Tasks whose entries are selected; None = all tasks.
    tasks: frozenset[str] | None
    #: Select only entries after this position, in the direction of reading; None = all entries.
    after: Position | None
    descending: bool

    def narrowed_range(self) -> tuple[int, int]:
        """Return start and end, narrowed by the position. Entries with exactly the time of the position
        remain in the range."""
        if self.after is None:
            return self.start, self.end
        if self.descending:
            return self.start, min(self.end, self.after[0] + 1)
        return max(self.start, self.after[0]), self.end

    def includes(self, job: Job) -> bool:
        """Whether the span can contain entries of the job."""
        start, end = self.narrowed_range()
        return job.created < end and (job.ended == 0 or job.ended + _SETTLE_TIME >= start)

    def contains(self, entry: Entry) -> bool:
        start, end = self.narrowed_range()
        if not start <= entry.time < end:
            return False
        if self.after is None:
            return True
        return entry.position < self.after if self.descending else entry.position > self.after


async def list_(call: Call, request: Any) -> Message:
    log_filter = read_filter(request)
    descending = _is_descending(request.order_by)
    projects = requested_projects(request)
    size = page_size(request.page_size, default=_DEFAULT_PAGE_SIZE, maximum=_MAX_PAGE_SIZE)
    question = (*projects, request.filter, request.order_by)
    after: Position | None = None
    if request.page_token:
        time, _, insert_id = decode_token(request.page_token, *question).partition(":")
        after = parse_position(time), insert_id
    now = call.services.now()
    sources: list[AsyncIterator[Entry]]
    if log_filter.is_audit:
        span = Span(log_filter.start, log_filter.end, None, after, descending)
        max_rows = MAX_AUDIT_RECORDS // len(projects)
        sources = [audit_entries(call, project, span, max_rows) for project in projects]
    else:
        jobs = await find_jobs(call.services.reader, projects, log_filter)
        sources = [
            job_entries(
                call.services,
                job,
                Span(log_filter.start, _end(job, log_filter, now), log_filter.tasks, after, descending),
            )
            for job in jobs
        ]
    page, last = await _search(merge_entries(sources, descending=descending), log_filter, size)
    if not page:
        reject_numbers(projects)
    return pool.message(
        "google.logging.v2.ListLogEntriesResponse",
        entries=[message(entry) for entry in page],
        next_page_token=encode_token("{}:{}".format(*last), *question) if last else "",
    )


def read_filter(request: Any) -> LogFilter:
    """Return the compiled filter of a request. Raises InvalidRequest."""
    try:
        return compile_log_filter(request.filter)
    except FilterError as error:
        raise InvalidRequest((Violation("filter", str(error)),)) from None


async def write(call: Call, request: Any) -> Message:
    """Write entries to the log of the calling program.

    Returns when readers can read all lines. Raises FailedPrecondition for callers that are not programs,
    InvalidRequest, and Unavailable.
    """
    program = call.principal.program
    if program is None:
        raise FailedPrecondition(
            "Only programs of jobs can write log entries, and only to their own log. The token of this "
            "request belongs to a user. Read entries with `trainshed jobs logs JOB` or entries:list."
        )
    if not all(entry.log_name or request.log_name for entry in request.entries):
        text = "Set the log name in the request or in each entry: projects/PROJECT/logs/LOG."
        raise InvalidRequest((Violation("log_name", text),))
    entries = (entry for entry in request.entries if set(entry.json_payload) != {_DIAGNOSTIC})
    lines = [_json_line(entry, dict(request.labels)) for entry in entries]
    if lines and not request.dry_run:
        await _write(call, program, lines)
    return pool.message("google.logging.v2.WriteLogEntriesResponse")


async def _write(call: Call, program: JobClaims, lines: Sequence[str]) -> None:
    replica, write_log = ReplicaId.parse(program.replica), call.services.write_log
    if write_log is None:
        raise FailedPrecondition(
            f"The service's engine cannot write entries into the log of {replica}. Print them instead: the "
            "program's output is in the log."
        )
    try:
        await write_log(JobUid(program.job_uid), program.attempt, replica, lines)
    except Unavailable as failure:
        raise Unavailable(
            f"The entries were not written into the log of {replica}: {failure}. Try again, or print them."
        ) from None


HANDLERS: Final[Handlers] = {
    f"{SERVICE_METHODS}.ListLogEntries": list_,
    f"{SERVICE_METHODS}.WriteLogEntries": write,
}


async def _search(
    entries: AsyncIterator[Entry], log_filter: LogFilter, size: int
) -> tuple[list[Entry], Position | None]:
    """Return at most `size` matching entries, and the position of the last entry that was read; None = all
    entries were read."""
    page: list[Entry] = []
    last: Position | None = None
    scanned = length = 0
    scan = Scan(log_filter.passes)
    async for batch in _batches(entries):
        verdicts = await scan.judge(batch)
        for entry, passing in zip(batch, verdicts, strict=False):
            if scanned == _SCAN_LIMIT:
                return page, last
            scanned += 1
            if passing:
                length += len(entry.text) + len(str(entry.payload or ""))
                if len(page) == size or (page and length > _MAX_PAGE_LENGTH):
                    return page, last
                page.append(entry)
            last = entry.position
        if len(verdicts) < len(batch):
            return page, last
    return page, None


async def _batches(entries: AsyncIterator[Entry]) -> AsyncIterator[list[Entry]]:
    batch: list[Entry] = []
    async for entry in entries:
        batch.append(entry)
        if len(batch) == _BATCH_SIZE:
            yield batch
            batch = []
    if batch:
        yield batch


async def find_jobs(reader: Reader, projects: Sequence[str], log_filter: LogFilter) -> list[Work]:
    """Return the jobs whose entries may match the filter."""
    jobs: dict[JobUid, Work] = {}
    for project in projects:
        if log_filter.job_ids is None:
            newest = await reader.jobs(JobQuery(project, None, None, limit=_MAX_SEARCHED_JOBS))
            candidates = [job for job, _ in newest]
        else:
            candidates = await _named_jobs(reader, project, log_filter.job_ids)
        for job in candidates:
            if job.created < log_filter.end and (
                job.ended == 0 or job.ended + _SETTLE_TIME >= log_filter.start
            ):
                jobs[job.uid] = job
    return list(jobs.values())


async def _named_jobs(reader: Reader, project: str, job_ids: Collection[str]) -> list[Work]:
    jobs: list[Work] = []
    for job_id in sorted(job_ids):
        try:
            if job_id.isdecimal():
                job, _ = await find_by_uid(reader, job_id)
            else:
                job, _ = await reader.job(JobName(Api.ML, project, "", job_id))
        except NotFound:
            continue
        owner = job.name.project_id
        if project in (owner, str(project_number(owner))):
            jobs.append(job)
    return jobs


def _end(job: Work, log_filter: LogFilter, now: Nanos) -> int:
    """Return the time before which the entries of a job are listed.

    For a running job, the newest lines are omitted, because late lines may still arrive. A finished job has
    no late lines. If the client has omitted its newest entries (`_CLIENT_MARGIN`), they are listed anyway:
    `gcloud ai-platform jobs stream-logs` stops at the end of a silent job, and would otherwise never show the
    last five seconds (spec/clients#stream-logs). On the public service, the end of a job becomes visible only
    one minute after its lines.
    """
    if not job.state.is_final:
        return min(log_filter.end, now - _SETTLE_TIME)
    return log_filter.end if log_filter.end < now - _CLIENT_MARGIN else LAST_TIME


def _is_descending(order_by: str) -> bool:
    match order_by.split():
        case [] | ["timestamp"] | ["timestamp", "asc"]:
            return False
        case ["timestamp", "desc"]:
            return True
        case _:
            text = f"{order_by!r} is not a valid order. Use 'timestamp asc' or 'timestamp desc'."
            raise InvalidRequest((Violation("order_by", text),))


def requested_projects(request: Any) -> tuple[str, ...]:
    """Return the project IDs in `resource_names` (`projects/P` or longer names) and in `project_ids`. Raises
    InvalidRequest."""
    names: list[str] = list(request.resource_names)
    invalid = [name for name in names if not name.startswith("projects/") or name == "projects/"]
    if invalid:
        faults = [f"{name!r} does not have the form projects/PROJECT." for name in invalid]
        raise InvalidRequest(tuple(Violation("resource_names", fault) for fault in faults))
    # Use `getattr`, because tail requests have no field `project_ids`.
    bare: Sequence[str] = getattr(request, "project_ids", ())
    projects = dict.fromkeys((*(name.split("/")[1] for name in names), *bare))
    if not projects:
        text = "Set at least one project: projects/PROJECT."
        raise InvalidRequest((Violation("resource_names", text),))
    return tuple(projects)


def _json_line(entry: Any, labels: dict[str, str]) -> str:
    """Return an entry in the form in which a program would print it: a JSON object with `severity` and
    `message`."""
    kind = entry.proto_payload.type_url.rpartition("/")[2]
    # The service cannot convert this payload, because only the client has its message type.
    entry.ClearField("proto_payload")
    public = wire_json.to_public(entry)
    content = {"severity": public.get("severity", "DEFAULT")}
    if kind:
        content["message"] = f"(an entry of the unsupported type {kind})"
    content |= dict(_content(entry, public))
    if labels := {**labels, **entry.labels}:
        content[LABELS] = labels
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _content(entry: Any, public: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    match entry.WhichOneof("payload"):
        case "text_payload":
            yield "message", entry.text_payload
        case "json_payload":
            payload: dict[str, Any] = public["jsonPayload"]
            yield from (member for member in payload.items() if member[0] != "severity")
        case _:
            pass
    for member, name in FIELDS.items():
        if name in public:
            yield member, public[name]


_LIST: Final = "trainshed.v1.Audit.List"
_AUDIT_PAGE_SIZE: Final = 1_000
MAX_AUDIT_RECORDS: Final = 20_000
"""Maximum number of audit records that one request reads, starting with the newest."""


async def audit_entries(call: Call, project: str, span: Span, max_rows: int) -> AsyncIterator[Entry]:
    """Yield the newest `max_rows` audit records of a project in `span`. Raises PermissionDenied."""
    authorize(call.principal, _LIST, (project,))
    start, end = span.narrowed_range()
    rows: list[AuditRow] = []
    before: int | None = None
    while len(rows) < max_rows:
        page = await call.services.access.audit_rows(project, before, _AUDIT_PAGE_SIZE)
        rows += [row for row in page if start <= row.at < end]
        if len(page) < _AUDIT_PAGE_SIZE or page[-1].at < start:
            break
        before = page[-1].seq
    entries = await asyncio.to_thread(
        lambda: sorted(map(audit_entry, rows[:max_rows]), key=lambda entry: entry.position)
    )
    for entry in reversed(entries) if span.descending else entries:
        if span.contains(entry):
            yield entry


# --- Entries of jobs, merged by time and read in pages on demand ---


async def job_entries(services: Services, job: Work, span: Span) -> AsyncIterator[Entry]:
    """Yield all entries of a job in `span`: the service's own lines, merged with the lines of the replicas.
    For a tuning job or pipeline job, these are the replicas of
    its jobs."""
    sources: list[AsyncIterator[Entry]] = []
    match job:
        case Job():
            programs = (job,)
        case TuningJob() | PipelineJob():
            children = await services.reader.children(job.uid)
            programs = tuple(c for c in children if isinstance(c, Job) and span.includes(c))
        case Pipeline():
            programs = ()
        case _:
            assert_never(job)
    for program in programs:
        replicas = matching_replicas(program, span.tasks)
        if replicas is None or replicas:
            sources.append(_line_entries(services, program, job.name, span, replicas))
    if span.tasks is None or SERVICE_TASK in span.tasks:
        sources.append(_service_entries(services, job, span))
    async for entry in merge_entries(sources, descending=span.descending):
        yield entry


async def merge_entries(sources: Sequence[AsyncIterator[Entry]], *, descending: bool) -> AsyncIterator[Entry]:
    """Merge the entries of several sources by time and insert ID. Each source must be ordered."""
    choose = max if descending else min
    heads: dict[int, Entry] = {}
    for index, source in enumerate(sources):
        await _advance(heads, index, source)
    while heads:
        index = choose(heads, key=lambda i: heads[i].position)
        yield heads[index]
        await _advance(heads, index, sources[index])


async def _advance(heads: dict[int, Entry], index: int, source: AsyncIterator[Entry]) -> None:
    try:
        heads[index] = await anext(source)
    except StopAsyncIteration:
        heads.pop(index, None)


async def _line_entries(
    services: Services, job: Job, job_name: JobName, span: Span, replicas: frozenset[ReplicaId] | None
) -> AsyncIterator[Entry]:
    start, end = span.narrowed_range()
    cursor, limit = None, _FIRST_CHUNK_SIZE
    while True:
        page = await services.logs.page(
            job.uid,
            replicas=replicas,
            start=start,
            end=end,
            after=cursor,
            limit=limit,
            descending=span.descending,
        )
        # Reads of short pages do not wait, and there may be a hundred jobs. Allow other tasks to run in
        # between.
        await asyncio.sleep(0)
        for line in page.lines:
            if line.is_notice:
                continue  # Omit: the timeline contains notices too.
            entry = replica_entry(job_name, line, job.spec.trial)
            if span.contains(entry):
                yield entry
        if page.next is None:
            return
        cursor, limit = page.next, _CHUNK_SIZE


async def _service_entries(services: Services, job: Work, span: Span) -> AsyncIterator[Entry]:
    timeline = await services.reader.timeline(job.uid)
    entries = service_entries(job, [with_links(services, job, entry) for entry in timeline])
    for entry in reversed(entries) if span.descending else entries:
        if span.contains(entry):
            yield entry


def matching_replicas(job: Job, tasks: frozenset[str] | None) -> frozenset[ReplicaId] | None:
    """Return the replicas whose log lines belong to one of these tasks; None = all replicas."""
    if tasks is None:
        return None
    writers = (*job.spec.replicas(), SERVICE)
    return frozenset(writer for writer in writers if log_task_name(job.name.api, writer) in tasks)
