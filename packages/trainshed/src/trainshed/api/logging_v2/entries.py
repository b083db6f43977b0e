"""Logging v2 `entries:list` and `entries:write` (facts/packaging#endpoints, spec/clients#log-pages).

The lists hold replicas' lines and the service's own, in one order; or the audit, if the filter names its log
(`cloudaudit.googleapis.com/activity`), and with no others: who reads a job's log may not read that.
Readers page by time and never see an entry that arrives behind their position, so an answer about a running
job stops short of the last moment, from which a line of another replica may still be on its way to its file.

What a program writes with google-cloud-logging becomes lines of its own replica's log. There it stands beside
what the program prints, with its severity and payload, in the order of arrival; its own names of logs,
resources and times are not kept. A caller that is no program has no log to write to.
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
from trainshed.api.filters.matching import LAST_MOMENT
from trainshed.api.filters.syntax import FilterError
from trainshed.api.logging_v2.entry import (
    Entry,
    audit_entry,
    message,
    replica_entry,
    service_entries,
)
from trainshed.api.logging_v2.filters import LogFilter, compile_log_filter
from trainshed.api.logging_v2.special_fields import FIELDS, LABELS
from trainshed.api.resources.jobs import find_by_uid, with_links
from trainshed.core.errors import (
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    Unavailable,
    Violation,
)
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
"""The only payload field of an entry in which a client library names itself, once per program."""
_DEFAULT_PAGE: Final = 50
_LARGEST_PAGE: Final = 1_000
_SCAN_LIMIT: Final = 20_000
"""Entries that one request examines before it answers a short page with a token to go on."""
_LONGEST_PAGE: Final = 4 << 20
"""Characters of the lines of a page; the entry that exceeds them begins the next one."""
_BATCH: Final = 100
"""Entries that are merged before the filter is applied to them off the event loop."""
_JOBS_SEARCHED: Final = 100
"""Number of a project's newest jobs that a filter without a job is applied to."""
Position = tuple[int, str]
"""(nanoseconds, insert id) of an entry."""
_SETTLED: Final = 10**9
"""Nanoseconds after which a written line is certain to be in its file."""
_CHUNK: Final = 1_000
"""Lines read at once."""
_FIRST: Final = 50
"""Lines read first of each job, since most of several have nothing in the page that is answered."""
_READERS_MARGIN: Final = 8 * 10**9
"""Nanoseconds. gcloud leaves out the last five seconds, in which a line could still come late, and a request
takes a while; a requested end that is no older than this is taken for such a margin."""


class Span(Struct, frozen=True):
    """The entries to read of a job: start <= at < end."""

    #: Nanoseconds since the epoch, as is `end`.
    start: Nanos
    end: Nanos
    #: None = all.
    tasks: frozenset[str] | None
    #: Only entries beyond this position in the direction of reading; None = all.
    after: Position | None
    descending: bool

    def narrowed(self) -> tuple[int, int]:
        """Return start and end, narrowed by where reading goes on; entries of that very moment remain
        included."""
        if self.after is None:
            return self.start, self.end
        if self.descending:
            return self.start, min(self.end, self.after[0] + 1)
        return max(self.start, self.after[0]), self.end

    def meets(self, job: Job) -> bool:
        """Whether the span can include anything of the job."""
        start, end = self.narrowed()
        return job.created < end and (job.ended == 0 or job.ended + _SETTLED >= start)

    def holds(self, entry: Entry) -> bool:
        start, end = self.narrowed()
        if not start <= entry.at < end:
            return False
        if self.after is None:
            return True
        return entry.position < self.after if self.descending else entry.position > self.after


async def list_(call: Call, request: Any) -> Message:
    wanted = read_filter(request)
    descending = _is_descending(request.order_by)
    projects = projects_of(request)
    size = page_size(request.page_size, default=_DEFAULT_PAGE, maximum=_LARGEST_PAGE)
    question = (*projects, request.filter, request.order_by)
    after: Position | None = None
    if request.page_token:
        at, _, insert_id = decode_token(request.page_token, *question).partition(":")
        after = parse_position(at), insert_id
    now = call.services.now()
    sources: list[AsyncIterator[Entry]]
    if wanted.is_of_audit:
        span = Span(wanted.start, wanted.end, None, after, descending)
        most = AT_MOST // len(projects)
        sources = [audit_entries(call, project, span, most) for project in projects]
    else:
        jobs = await jobs_of(call.services.reader, projects, wanted)
        sources = [
            job_entries(
                call.services,
                job,
                Span(wanted.start, _end(job, wanted, now), wanted.tasks, after, descending),
            )
            for job in jobs
        ]
    page, last = await _search(merged(sources, descending=descending), wanted, size)
    if not page:
        reject_numbers(projects)
    return pool.message(
        "google.logging.v2.ListLogEntriesResponse",
        entries=[message(entry) for entry in page],
        next_page_token=encode_token("{}:{}".format(*last), *question) if last else "",
    )


def read_filter(request: Any) -> LogFilter:
    """Return the filter of a request. Raises InvalidRequest."""
    try:
        return compile_log_filter(request.filter)
    except FilterError as error:
        raise InvalidRequest((Violation("filter", str(error)),)) from None


async def write(call: Call, request: Any) -> Message:
    """Write entries to the calling program's log. Returns when every line can be read. Raises
    FailedPrecondition (the caller is no program), InvalidRequest, Unavailable."""
    program = call.principal.program
    if program is None:
        raise FailedPrecondition(
            "Only programs of jobs can write log entries, and only to their own log. This is the token of "
            "a user. Read entries with `trainshed jobs logs JOB` or entries:list."
        )
    if not all(entry.log_name or request.log_name for entry in request.entries):
        text = "Name a log, here or in each entry: projects/PROJECT/logs/LOG."
        raise InvalidRequest((Violation("log_name", text),))
    entries = (entry for entry in request.entries if set(entry.json_payload) != {_DIAGNOSTIC})
    lines = [_line(entry, dict(request.labels)) for entry in entries]
    if lines and not request.dry_run:
        await _write(call, program, lines)
    return pool.message("google.logging.v2.WriteLogEntriesResponse")


async def _write(call: Call, program: JobClaims, lines: Sequence[str]) -> None:
    replica, write_log = ReplicaId.parse(program.replica), call.services.write_log
    if write_log is None:
        raise FailedPrecondition(
            f"The engine does not accept lines for the log of {replica}. Print them instead."
        )
    try:
        await write_log(JobUid(program.job_uid), program.attempt, replica, lines)
    except Unavailable as failure:
        raise Unavailable(
            f"The log of {replica} does not accept lines now: {failure}. Try again, or print them."
        ) from None


HANDLERS: Final[Handlers] = {
    f"{SERVICE_METHODS}.ListLogEntries": list_,
    f"{SERVICE_METHODS}.WriteLogEntries": write,
}


async def _search(
    entries: AsyncIterator[Entry], wanted: LogFilter, size: int
) -> tuple[list[Entry], Position | None]:
    """Return at most `size` entries that pass, and the position of the last one examined; None at the end."""
    page: list[Entry] = []
    last: Position | None = None
    scanned = length = 0
    scan = Scan(wanted.passes)
    async for batch in _batches(entries):
        verdicts = await scan.judge(batch)
        for entry, passing in zip(batch, verdicts, strict=False):
            if scanned == _SCAN_LIMIT:
                return page, last
            scanned += 1
            if passing:
                length += len(entry.text) + len(str(entry.payload or ""))
                if len(page) == size or (page and length > _LONGEST_PAGE):
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
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


async def jobs_of(reader: Reader, projects: Sequence[str], wanted: LogFilter) -> list[Work]:
    """Return the jobs whose entries the filter can match."""
    jobs: dict[JobUid, Work] = {}
    for project in projects:
        if wanted.job_ids is None:
            newest = await reader.jobs(JobQuery(project, None, None, limit=_JOBS_SEARCHED))
            candidates = [job for job, _ in newest]
        else:
            candidates = await _named_jobs(reader, project, wanted.job_ids)
        for job in candidates:
            if job.created < wanted.end and (
                job.ended == 0 or job.ended + _SETTLED >= wanted.start
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


def _end(job: Work, wanted: LogFilter, now: Nanos) -> int:
    """Return the time before which a job's entries are listed.

    A job that is over gets no late lines, so a reader's margin is not kept: `gcloud ai-platform jobs
    stream-logs` stops as soon as it sees the end of a job that was silent, and would never show the last five
    seconds (spec/clients#stream-logs; the public service publishes a job's end a minute after its lines).
    """
    if not job.state.is_final:
        return min(wanted.end, now - _SETTLED)
    return wanted.end if wanted.end < now - _READERS_MARGIN else LAST_MOMENT


def _is_descending(order_by: str) -> bool:
    match order_by.split():
        case [] | ["timestamp"] | ["timestamp", "asc"]:
            return False
        case ["timestamp", "desc"]:
            return True
        case _:
            text = f"{order_by!r} is not 'timestamp asc' or 'timestamp desc'."
            raise InvalidRequest((Violation("order_by", text),))


def projects_of(request: Any) -> tuple[str, ...]:
    """Return the project ids in `resource_names` (`projects/P`, or what lies below it) and `project_ids`.
    Raises InvalidRequest."""
    names: list[str] = list(request.resource_names)
    foreign = [name for name in names if not name.startswith("projects/") or name == "projects/"]
    if foreign:
        faults = [f"{name!r} is not of the form projects/PROJECT." for name in foreign]
        raise InvalidRequest(tuple(Violation("resource_names", fault) for fault in faults))
    # Requests to tail have no `project_ids`.
    bare: Sequence[str] = getattr(request, "project_ids", ())
    projects = dict.fromkeys((*(name.split("/")[1] for name in names), *bare))
    if not projects:
        text = "Name at least one project: projects/PROJECT."
        raise InvalidRequest((Violation("resource_names", text),))
    return tuple(projects)


def _line(entry: Any, labels: dict[str, str]) -> str:
    """Return an entry as a program would print it: one JSON object, of which the log knows `severity` and
    `message`."""
    kind = entry.proto_payload.type_url.rpartition("/")[2]
    entry.ClearField("proto_payload")  # Only its sender knows its type.
    public = wire_json.to_public(entry)
    content = {"severity": public.get("severity", "DEFAULT")}
    if kind:
        content["message"] = f"(an entry of the type {kind}, which is not read here)"
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
_PAGE: Final = 1_000
AT_MOST: Final = 20_000
"""Records that one request looks at, the newest of its projects."""


async def audit_entries(call: Call, project: str, span: Span, most: int) -> AsyncIterator[Entry]:
    """Yield the records in `span` of a project, the newest `most`. Raises PermissionDenied."""
    authorize(call.principal, _LIST, (project,))
    start, end = span.narrowed()
    rows: list[AuditRow] = []
    before: int | None = None
    while len(rows) < most:
        page = await call.services.access.audited(project, before, _PAGE)
        rows += [row for row in page if start <= row.at < end]
        if len(page) < _PAGE or page[-1].at < start:
            break
        before = page[-1].seq
    entries = await asyncio.to_thread(
        lambda: sorted(map(audit_entry, rows[:most]), key=lambda entry: entry.position)
    )
    for entry in reversed(entries) if span.descending else entries:
        if span.holds(entry):
            yield entry


# --- Entries of jobs, in one order of time, read page by page as they are needed ---


async def job_entries(services: Services, job: Work, span: Span) -> AsyncIterator[Entry]:
    """Yield everything that a job logged in `span`: its replicas' lines, or those of a tuning job's trials,
    merged with the service's own lines."""
    sources: list[AsyncIterator[Entry]] = []
    match job:
        case Job():
            programs = (job,)
        case TuningJob():
            children = await services.reader.children(job.uid)
            programs = tuple(c for c in children if isinstance(c, Job) and span.meets(c))
        case Pipeline():
            programs = ()
        case _:
            assert_never(job)
    for program in programs:
        replicas = replicas_of(program, span.tasks)
        if replicas is None or replicas:
            sources.append(_lines(services, program, job.name, span, replicas))
    if span.tasks is None or SERVICE_TASK in span.tasks:
        sources.append(_service(services, job, span))
    async for entry in merged(sources, descending=span.descending):
        yield entry


async def merged(
    sources: Sequence[AsyncIterator[Entry]], *, descending: bool
) -> AsyncIterator[Entry]:
    """Yield the entries of ordered sources in one order, by time and insert id."""
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


async def _lines(
    services: Services,
    job: Job,
    shown_as: JobName,
    span: Span,
    replicas: frozenset[ReplicaId] | None,
) -> AsyncIterator[Entry]:
    start, end = span.narrowed()
    cursor, limit = None, _FIRST
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
        # Short pages are read without a pause, and there may be a hundred jobs: let others run.
        await asyncio.sleep(0)
        for line in page.lines:
            if line.is_notice:
                continue  # The timeline has it as well, and service entries are made from that.
            entry = replica_entry(shown_as, line, job.spec.trial)
            if span.holds(entry):
                yield entry
        if page.next is None:
            return
        cursor, limit = page.next, _CHUNK


async def _service(services: Services, job: Work, span: Span) -> AsyncIterator[Entry]:
    timeline = await services.reader.timeline(job.uid)
    entries = service_entries(job, [with_links(services, job, entry) for entry in timeline])
    for entry in reversed(entries) if span.descending else entries:
        if span.holds(entry):
            yield entry


def replicas_of(job: Job, tasks: frozenset[str] | None) -> frozenset[ReplicaId] | None:
    """Return the writers that the tasks name; None for all."""
    if tasks is None:
        return None
    writers = (*job.spec.replicas(), SERVICE)
    return frozenset(writer for writer in writers if log_task_name(job.name.api, writer) in tasks)
