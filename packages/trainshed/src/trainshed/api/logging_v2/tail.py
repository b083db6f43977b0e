"""Logging v2 `TailLogEntries`: a stream of the new entries of jobs (facts/packaging#tail).

A session does not poll. Notices about jobs wake the session, which then reads the new lines and timeline
entries. The session returns each entry after the buffer window, in chronological order. If the client is
slow, the session stops reading until the client has received the entries. Therefore the service never drops
an entry.
"""

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from typing import Any, Final

from google.protobuf.message import Message
from msgspec import Struct, field

from trainshed.api.calls.call import Call
from trainshed.api.calls.services import Services
from trainshed.api.calls.streams import Pace, StreamHandlers
from trainshed.api.logging_v2.entries import (
    SERVICE_METHODS,
    find_jobs,
    matching_replicas,
    read_filter,
    requested_projects,
)
from trainshed.api.logging_v2.entry import Entry, message, replica_entry, service_entries
from trainshed.api.logging_v2.filters import LogFilter
from trainshed.api.resources.jobs import with_links
from trainshed.core.errors import NotFound, ResourceExhausted
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import SERVICE_TASK, JobName, JobUid, ReplicaId, project_number
from trainshed.core.requests import Faults
from trainshed.core.units import Nanos
from trainshed.core.works import Work
from trainshed.wire import pool

MAX_SESSIONS: Final = 100
"""Maximum number of open sessions per project."""
_DEFAULT_WINDOW: Final = 2.0
"""Buffer window in seconds of a request that specifies none."""
_MAX_WINDOW: Final = 60.0
"""Maximum buffer window in seconds."""
MAX_BUFFER: Final = 10_000
"""Maximum number of entries in the buffer. If the buffer is full, the earliest entries are returned before
the end of their window."""
_CHUNK_SIZE: Final = 1_000
"""Maximum number of lines per read of a job, and of entries per response."""
_MAX_IGNORED_JOBS: Final = 10_000
_MAX_DONE_JOBS: Final = 100_000
"""Maximum number of finished jobs whose UIDs a session remembers."""
_RECHECK_INTERVAL: Final = 600.0
"""A session without notices checks for new entries after this number of seconds."""
_EXECUTOR: Final = ThreadPoolExecutor(1, "tailing")
sessions: Final[Counter[str]] = Counter()
"""Number of open sessions, by project."""


async def tail(call: Call, request: Any) -> AsyncGenerator[Message]:
    """Start a session and return its responses. Raises InvalidRequest and ResourceExhausted."""
    projects = requested_projects(request)
    log_filter = read_filter(request)
    faults = Faults()
    if log_filter.is_audit:
        text = "The audit log cannot be tailed. Read it in pages with entries:list."
        faults.add("filter", text)
    window = request.buffer_window
    is_set = request.HasField("buffer_window")
    seconds = window.seconds + window.nanos / 1e9 if is_set else _DEFAULT_WINDOW
    if not 0 <= seconds <= _MAX_WINDOW:
        text = f"The window must be from 0 to {_MAX_WINDOW:.0f} seconds, such as 2s."
        faults.add("buffer_window", text)
    faults.refuse()
    if full := [project for project in projects if sessions[project] >= MAX_SESSIONS]:
        raise ResourceExhausted(
            f"The project {full[0]} already has the maximum of {MAX_SESSIONS} tail sessions. End a session, "
            "or read entries with entries:list."
        )
    return _responses(call.services, projects, log_filter, seconds)


STREAMS: Final[StreamHandlers] = {f"{SERVICE_METHODS}.TailLogEntries": tail}


class _TailedJob(Struct):
    """A job whose entries a session returns."""

    work: Work
    #: The job name in the returned entries. For the job of a trial, this is the name of the tuning job,
    #: unless the filter selects the trial.
    job_name: JobName
    trial: str | None
    #: The replicas whose lines the session returns; None = all replicas.
    replicas: frozenset[ReplicaId] | None
    has_service_lines: bool
    positions: dict[ReplicaId, tuple[int, int]] = field(default_factory=dict[ReplicaId, tuple[int, int]])
    #: Number of the job's service lines that were already read.
    service_lines: int = 0


async def _responses(
    services: Services, projects: Sequence[str], log_filter: LogFilter, window: float
) -> AsyncGenerator[Message]:
    sessions.update(projects)
    try:
        session = _Session(services, projects, log_filter, window)
        pace = Pace(services.notices)
        while True:
            await pace.start_read()
            await session.read()
            pace.finish_read()
            due = session.due()
            while entries := [message(entry) for entry in islice(due, _CHUNK_SIZE)]:
                yield pool.message("google.logging.v2.TailLogEntriesResponse", entries=entries)
            await session.wait()
    finally:
        sessions.subtract(projects)


class _Session:
    """One session: its position in the logs of its jobs, and the entries that it has read but not returned
    yet."""

    def __init__(
        self, services: Services, projects: Sequence[str], log_filter: LogFilter, window: float
    ) -> None:
        self._services = services
        self._projects = projects
        self._filter = log_filter
        self._window = window
        self._since = max(services.now(), log_filter.start)
        self._loop = asyncio.get_running_loop()
        #: Number of the newest notice at the last read.
        self._notice = services.notices.latest
        self._jobs: dict[JobUid, _TailedJob] = {}
        #: UIDs of jobs whose entries do not belong to this session.
        self._ignored: set[JobUid] = set()
        #: UIDs of finished jobs whose entries were all read.
        self._done: set[JobUid] = set()
        #: UIDs of jobs that may have unread lines.
        self._unread: set[JobUid] = set()
        #: Entries in a heap, ordered by time and insert ID.
        self._buffer: list[tuple[tuple[Nanos, str], int, Entry]] = []
        self._numbers = count()
        #: For each entry, the end of its window by the event loop's clock, and its time and insert ID.
        self._ends: deque[tuple[float, tuple[Nanos, str]]] = deque()

    async def read(self) -> None:
        """Read new entries into the buffer, until the buffer is full."""
        notices = self._services.notices
        latest, changed_uids = notices.latest, notices.since(self._notice)
        if changed_uids is None:
            jobs = await find_jobs(self._services.reader, self._projects, self._filter)
            changed_uids = [*self._jobs, *(job.uid for job in jobs)]
        self._notice = latest
        self._unread.update(changed_uids)
        for uid in tuple(self._unread):
            if len(self._buffer) >= MAX_BUFFER:
                return
            if (job := await self._find_job(uid)) is None:
                self._unread.discard(uid)
            elif not await self._read_job(job):
                self._unread.discard(uid)
                # Forget a job if it has finished and all of its lines were read. No lines follow, because the
                # last lines are readable before the end of the job is published.
                if job.work.state.is_final:
                    self._finish(uid)

    def due(self) -> Iterator[Entry]:
        """Yield the entries whose window has ended, and all earlier entries, in order of time."""
        now, last = self._loop.time(), None
        while self._ends and self._ends[0][0] <= now:
            _, position = self._ends.popleft()
            last = position if last is None else max(last, position)
        while self._buffer and (
            len(self._buffer) >= MAX_BUFFER or (last is not None and self._buffer[0][0] <= last)
        ):
            yield heapq.heappop(self._buffer)[2]

    async def wait(self) -> None:
        """Wait until there may be entries to read or to yield."""
        if self._unread:
            return
        left = self._ends[0][0] - self._loop.time() if self._ends else _RECHECK_INTERVAL
        if left > 0:
            await self._services.notices.wait_beyond(None, self._notice, left)

    def _finish(self, uid: JobUid) -> None:
        del self._jobs[uid]
        self._done.add(uid)
        if len(self._done) > _MAX_DONE_JOBS:
            self._done = set(sorted(self._done)[_MAX_DONE_JOBS // 2 :])

    async def _read_job(self, job: _TailedJob) -> bool:
        """Read new entries of a job. Return whether the job may have more new entries."""
        if job.has_service_lines:
            timeline = await self._services.reader.timeline(job.work.uid)
            linked = [with_links(self._services, job.work, entry) for entry in timeline]
            entries = service_entries(job.work, linked)
            new_entries, job.service_lines = entries[job.service_lines :], len(entries)
            self._add(entry for entry in new_entries if self._passes(entry))
        if not isinstance(job.work, Job):
            return False
        entries, lines = await self._loop.run_in_executor(_EXECUTOR, self._lines, job)
        self._add(entries)
        return lines == _CHUNK_SIZE

    def _lines(self, job: _TailedJob) -> tuple[list[Entry], int]:
        """Return the matching entries among a job's next lines, and the number of lines that were read.
        Blocks."""
        entries: list[Entry] = []
        lines = 0
        new_lines = self._services.logs.new_entries(job.work.uid, job.positions, self._since, job.replicas)
        for stored, source in new_lines:
            line = source.line(stored)
            job.positions[line.replica] = (line.attempt, line.n)
            # Omit a notice in the log, because the timeline contains it too. The session returns it as a
            # service line.
            if not line.is_notice and self._passes(entry := replica_entry(job.job_name, line, job.trial)):
                entries.append(entry)
            lines += 1
            if lines == _CHUNK_SIZE:
                break
        return entries, lines

    def _passes(self, entry: Entry) -> bool:
        return self._since <= entry.time < self._filter.end and self._filter.passes(entry)

    def _add(self, entries: Iterator[Entry] | list[Entry]) -> None:
        end = self._loop.time() + self._window
        for entry in entries:
            heapq.heappush(self._buffer, (entry.position, next(self._numbers), entry))
            self._ends.append((end, entry.position))

    async def _find_job(self, uid: JobUid) -> _TailedJob | None:
        """Return the job with this UID, or None if it cannot have entries for this session."""
        if uid in self._ignored or uid in self._done:
            return None
        try:
            work, _ = await self._services.reader.job_by_uid(uid)
        except NotFound:
            self._jobs.pop(uid, None)
            return None
        if (job := self._jobs.get(uid)) is not None:
            job.work = work  # The job's state and links may have changed.
        elif (job := self._new_job(work)) is not None:
            self._jobs[uid] = job
        else:
            if len(self._ignored) >= _MAX_IGNORED_JOBS:
                self._ignored.clear()
            self._ignored.add(uid)
        return job

    def _new_job(self, work: Work) -> _TailedJob | None:
        ids, tasks = self._filter.job_ids, self._filter.tasks
        owner = work.name.project_id
        if not {owner, str(project_number(owner))} & set(self._projects):
            return None
        parent = work.parent if isinstance(work, Job) else None
        own_ids = {work.name.job_id, str(work.uid)}
        # Entries of a trial are returned as entries of its tuning job, unless the filter selects the trial.
        is_trial = parent is not None and parent.trial > 0 and not (ids and own_ids & ids)
        name = parent.name if parent is not None and is_trial else work.name
        if ids is not None and not ({name.job_id} | (set() if is_trial else own_ids)) & ids:
            return None
        return _TailedJob(
            work,
            name,
            work.spec.trial if isinstance(work, Job) else None,
            matching_replicas(work, tasks) if isinstance(work, Job) else None,
            not is_trial and (tasks is None or SERVICE_TASK in tasks),
        )
