"""Logging v2 `TailLogEntries`: a stream of the entries of jobs from now on (facts/packaging#tail).

Notices of jobs wake a session; it never polls. It reads what is new from the logs and timelines, and returns
each entry after the buffer window, in the order of times. Entries wait in the log until the client reads
them, so none is ever suppressed.
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
    jobs_of,
    projects_of,
    read_filter,
    replicas_of,
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
"""Most sessions of one project at a time."""
_DEFAULT_WINDOW: Final = 2.0
_MAX_WINDOW: Final = 60.0
"""Seconds of the buffer window."""
MAX_BUFFER: Final = 10_000
"""Entries of the buffer. When it is full, the earliest ones are returned before their window ends."""
_CHUNK: Final = 1_000
"""Lines of a job that are read at a time, and most entries of a response."""
_MAX_IGNORED: Final = 10_000
_MAX_DONE: Final = 100_000
"""Most jobs that a session remembers."""
_RECHECK: Final = 600.0
"""Seconds after which a session without notices checks for news all the same."""
_THREAD: Final = ThreadPoolExecutor(1, "tailing")
sessions: Final[Counter[str]] = Counter()
"""Open sessions by project."""


async def tail(call: Call, request: Any) -> AsyncGenerator[Message]:
    """Return the responses of a session. Raises InvalidRequest, ResourceExhausted."""
    projects = projects_of(request)
    wanted = read_filter(request)
    faults = Faults()
    if wanted.is_of_audit:
        text = "The audit log cannot be tailed. Read it page by page with entries:list."
        faults.add("filter", text)
    window = request.buffer_window
    is_given = request.HasField("buffer_window")
    seconds = window.seconds + window.nanos / 1e9 if is_given else _DEFAULT_WINDOW
    if not 0 <= seconds <= _MAX_WINDOW:
        text = f"The window must be from 0 to {_MAX_WINDOW:.0f} seconds, such as 2s."
        faults.add("buffer_window", text)
    faults.refuse()
    if full := [project for project in projects if sessions[project] >= MAX_SESSIONS]:
        raise ResourceExhausted(
            f"{MAX_SESSIONS} sessions tail the logs of the project {full[0]}, which is the most. End one "
            "of them, or read with entries:list."
        )
    return _responses(call.services, projects, wanted, seconds)


STREAMS: Final[StreamHandlers] = {f"{SERVICE_METHODS}.TailLogEntries": tail}


class _Followed(Struct):
    """A job whose entries a session returns."""

    work: Work
    #: The job that the entries of its lines name.
    shown_as: JobName
    trial: str | None
    #: None = all.
    replicas: frozenset[ReplicaId] | None
    has_service_lines: bool
    seen: dict[ReplicaId, tuple[int, int]] = field(default_factory=dict[ReplicaId, tuple[int, int]])
    #: The number of service lines that were read.
    service_lines: int = 0


async def _responses(
    services: Services, projects: Sequence[str], wanted: LogFilter, window: float
) -> AsyncGenerator[Message]:
    sessions.update(projects)
    try:
        session = _Session(services, projects, wanted, window)
        pace = Pace(services.notices)
        while True:
            await pace.start_read()
            await session.read()
            pace.finish_read()
            due = session.due()
            while entries := [message(entry) for entry in islice(due, _CHUNK)]:
                yield pool.message("google.logging.v2.TailLogEntriesResponse", entries=entries)
            await session.wait()
    finally:
        sessions.subtract(projects)


class _Session:
    """The state of one session."""

    def __init__(
        self, services: Services, projects: Sequence[str], wanted: LogFilter, window: float
    ) -> None:
        self._services = services
        self._projects = projects
        self._wanted = wanted
        self._window = window
        self._since = max(services.now(), wanted.start)
        self._loop = asyncio.get_running_loop()
        #: The number of the last notice before the last read.
        self._notice = services.notices.latest
        self._jobs: dict[JobUid, _Followed] = {}
        #: Jobs that are not of this session.
        self._ignored: set[JobUid] = set()
        #: Jobs that have ended and whose entries were read.
        self._done: set[JobUid] = set()
        #: Jobs with lines that were not read yet.
        self._unread: set[JobUid] = set()
        #: By time and insert id.
        self._buffer: list[tuple[tuple[Nanos, str], int, Entry]] = []
        self._numbers = count()
        #: When the window of an entry ends, by the loop's clock, with the entry's position.
        self._ends: deque[tuple[float, tuple[Nanos, str]]] = deque()

    async def read(self) -> None:
        """Read new entries into the buffer, as far as it has room."""
        notices = self._services.notices
        latest, news = notices.latest, notices.since(self._notice)
        if news is None:
            jobs = await jobs_of(self._services.reader, self._projects, self._wanted)
            news = [*self._jobs, *(job.uid for job in jobs)]
        self._notice = latest
        self._unread.update(news)
        for uid in tuple(self._unread):
            if len(self._buffer) >= MAX_BUFFER:
                return
            if (job := await self._followed(uid)) is None:
                self._unread.discard(uid)
            elif not await self._read_job(job):
                self._unread.discard(uid)
                if (
                    job.work.state.is_final
                ):  # Its last lines can be read before its end is published.
                    self._finish(uid)

    def due(self) -> Iterator[Entry]:
        """Yield the entries whose window has ended, and those before them, in the order of times."""
        now, last = self._loop.time(), None
        while self._ends and self._ends[0][0] <= now:
            _, position = self._ends.popleft()
            last = position if last is None else max(last, position)
        while self._buffer and (
            len(self._buffer) >= MAX_BUFFER or (last is not None and self._buffer[0][0] <= last)
        ):
            yield heapq.heappop(self._buffer)[2]

    async def wait(self) -> None:
        """Wait until there may be something to read or to return."""
        if self._unread:
            return
        left = self._ends[0][0] - self._loop.time() if self._ends else _RECHECK
        if left > 0:
            await self._services.notices.wait_beyond(None, self._notice, left)

    def _finish(self, uid: JobUid) -> None:
        del self._jobs[uid]
        self._done.add(uid)
        if len(self._done) > _MAX_DONE:
            self._done = set(sorted(self._done)[_MAX_DONE // 2 :])

    async def _read_job(self, job: _Followed) -> bool:
        """Read new entries of a job; return whether there may be more."""
        if job.has_service_lines:
            timeline = await self._services.reader.timeline(job.work.uid)
            linked = [with_links(self._services, job.work, entry) for entry in timeline]
            entries = service_entries(job.work, linked)
            fresh, job.service_lines = entries[job.service_lines :], len(entries)
            self._add(entry for entry in fresh if self._passes(entry))
        if not isinstance(job.work, Job):
            return False
        entries, lines = await self._loop.run_in_executor(_THREAD, self._lines, job)
        self._add(entries)
        return lines == _CHUNK

    def _lines(self, job: _Followed) -> tuple[list[Entry], int]:
        """Return the entries of the next lines of a job that pass the filter, and the number of these lines.
        Blocks."""
        entries: list[Entry] = []
        lines = 0
        unseen = self._services.logs.onward(job.work.uid, job.seen, self._since, job.replicas)
        for stored, source in unseen:
            line = source.line(stored)
            job.seen[line.replica] = (line.attempt, line.n)
            # The timeline has notices as well; service lines are made of that.
            if not line.is_notice and self._passes(
                entry := replica_entry(job.shown_as, line, job.trial)
            ):
                entries.append(entry)
            lines += 1
            if lines == _CHUNK:
                break
        return entries, lines

    def _passes(self, entry: Entry) -> bool:
        return self._since <= entry.at < self._wanted.end and self._wanted.passes(entry)

    def _add(self, entries: Iterator[Entry] | list[Entry]) -> None:
        end = self._loop.time() + self._window
        for entry in entries:
            heapq.heappush(self._buffer, (entry.position, next(self._numbers), entry))
            self._ends.append((end, entry.position))

    async def _followed(self, uid: JobUid) -> _Followed | None:
        """Return a job that may have entries for this session; None if it has none."""
        if uid in self._ignored or uid in self._done:
            return None
        try:
            work, _ = await self._services.reader.job_by_uid(uid)
        except NotFound:
            self._jobs.pop(uid, None)
            return None
        if (job := self._jobs.get(uid)) is not None:
            job.work = work  # Its links and state may have changed.
        elif (job := self._new(work)) is not None:
            self._jobs[uid] = job
        else:
            if len(self._ignored) >= _MAX_IGNORED:
                self._ignored.clear()
            self._ignored.add(uid)
        return job

    def _new(self, work: Work) -> _Followed | None:
        ids, tasks = self._wanted.job_ids, self._wanted.tasks
        owner = work.name.project_id
        if not {owner, str(project_number(owner))} & set(self._projects):
            return None
        parent = work.parent if isinstance(work, Job) else None
        own = {work.name.job_id, str(work.uid)}
        # Trials are listed as part of their tuning job, unless the filter specifies one.
        is_trial = parent is not None and parent.trial > 0 and not (ids and own & ids)
        name = parent.name if parent is not None and is_trial else work.name
        if ids is not None and not ({name.job_id} | (set() if is_trial else own)) & ids:
            return None
        return _Followed(
            work,
            name,
            work.spec.trial if isinstance(work, Job) else None,
            replicas_of(work, tasks) if isinstance(work, Job) else None,
            not is_trial and (tasks is None or SERVICE_TASK in tasks),
        )
