"""Deletes jobs after the end of their retention, at regular intervals and in the order of their ends (ADR
77).

A job is deleted in the same way as by a request. If a pass is interrupted, the next one completes it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.errors import NotFound, RequestError
from trainshed.core.names import JobName, JobUid
from trainshed.core.units import Nanos
from trainshed.eventloop.background import Crew, joined, wait_shielded
from trainshed.store.port import ORPHANS, Created, JobQuery
from trainshed.store.sqlite.reader import Reader
from trainshed.telemetry.lines import about
from trainshed.telemetry.meters import Meters

log = logging.getLogger(__name__)

FIRST_PASS: Final = 60.0
"""Seconds between the service's start and the first pass."""
PASS_INTERVAL: Final = 900.0
"""Seconds between two passes."""
_PAUSE_BETWEEN_DELETIONS: Final = 0.01
"""Pause in seconds between two deletions, so that requests and jobs are processed."""
_PAGE: Final = 500


class _FinishedJob(Struct, frozen=True):
    """A finished job that may have expired."""

    uid: JobUid
    name: JobName
    ended: Nanos


@dataclass(slots=True)
class RetentionTimer:
    """Deletes expired jobs at regular intervals."""

    #: Time that a job is kept after its end. 0 keeps it forever.
    age: Nanos
    reader: Reader
    #: Deletes a job with all its data, like a request. Raises RequestError if the job cannot be deleted.
    remove: Callable[[JobName], Coroutine[Any, Any, object]]
    now: Callable[[], int]
    meters: Meters
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _crew: Crew = field(init=False, default_factory=Crew)
    _removing: asyncio.Task[object] | None = field(init=False, default=None)

    def start(self) -> None:
        """Start the passes, if the setting is set."""
        if self.age:
            self._crew.keep(self._run, "retention")

    async def close(self) -> None:
        """Stop the passes. First complete a deletion in progress: a later pass could not find the files of a
        deleted record."""
        await self._crew.close()
        if self._removing is not None:
            await asyncio.wait([self._removing])

    async def _run(self) -> None:
        await self.sleep(FIRST_PASS)
        while True:
            await self.run_pass()
            await self.sleep(PASS_INTERVAL)

    async def run_pass(self) -> None:
        """Delete all expired jobs."""
        for over in await self._due():
            await self._delete(over)
            await self.sleep(_PAUSE_BETWEEN_DELETIONS)

    async def _due(self) -> list[_FinishedJob]:
        """Return the expired jobs, tuning jobs and pipelines of clients, with the earliest ends first.
        Include expired jobs whose parent, a tuning job or pipeline, was deleted. Omit other jobs with a
        parent, because `_delete` deletes them together with it."""
        before = self.now() - self.age
        query = JobQuery(None, None, None, limit=_PAGE)
        orphans = await self.reader.children(ORPHANS)
        over = [_FinishedJob(work.uid, work.name, work.ended) for work in orphans]
        while True:
            # No job ends before its creation, so the index on creation finds all expired jobs.
            page = await self.reader.matching(query, Created(0, before - 1))
            over += [_FinishedJob(work.uid, work.name, work.ended) for work, _ in page.jobs]
            if page.next_after is None:
                return sorted((job for job in over if 0 < job.ended < before), key=lambda job: job.ended)
            query = replace(query, after=page.next_after)

    async def _delete(self, over: _FinishedJob) -> bool:
        """Delete a job, tuning job or pipeline, after the jobs that it has created as their parent. Return
        False if one of them is in use and cannot be deleted yet."""
        try:
            for child in await self.reader.children(over.uid):
                if not await self._delete(_FinishedJob(child.uid, child.name, child.ended)):
                    return False
            self._removing = joined(self.remove(over.name))
            await wait_shielded(self._removing)
        except NotFound:
            # A client has already deleted the job.
            return True
        except RequestError as refused:
            about(log, over.uid).warning("the retention of jobs did not delete it: %s", refused)
            return False
        self.meters.deleted_jobs += 1
        about(log, over.uid).info("%s deleted: it ended longer ago than the retention of jobs", over.name)
        return True
