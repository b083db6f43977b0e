"""Merges entries of jobs into one order of time; reads them page by page as they are needed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, assert_never

from msgspec import Struct

from trainshed.api.calls.services import Services
from trainshed.api.logging_v2.entry import Entry, replica_entry, service_entries
from trainshed.api.resources.jobs import with_links
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import SERVICE, SERVICE_TASK, JobName, ReplicaId, log_task_name
from trainshed.core.pipelines import Pipeline
from trainshed.core.tuning.records import TuningJob
from trainshed.core.units import Nanos
from trainshed.core.works import Work

Position = tuple[int, str]
"""(nanoseconds, insert id) of an entry."""

SETTLED: Final = 10**9
"""Nanoseconds after which a written line is certain to be in its file."""
_CHUNK: Final = 1_000
"""Lines read at once."""
_FIRST: Final = 50
"""Lines read first of each job, since most of several have nothing in the page that is answered."""


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
        return job.created < end and (job.ended == 0 or job.ended + SETTLED >= start)

    def holds(self, entry: Entry) -> bool:
        start, end = self.narrowed()
        if not start <= entry.at < end:
            return False
        if self.after is None:
            return True
        return entry.position < self.after if self.descending else entry.position > self.after


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
        replicas = _replicas(program, span.tasks)
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


def _replicas(job: Job, tasks: frozenset[str] | None) -> frozenset[ReplicaId] | None:
    """Return the writers that the tasks name; None for all."""
    if tasks is None:
        return None
    writers = (*job.spec.replicas(), SERVICE)
    return frozenset(writer for writer in writers if log_task_name(job.name.api, writer) in tasks)
