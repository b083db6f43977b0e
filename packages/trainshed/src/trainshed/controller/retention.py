"""Deletes jobs that have been over for long, and logs that are too many, as the settings say. It
does so now and then, one deletion after the other, the oldest first.
`core.retention` decides what is due (ADR 77).

A job is deleted as a request deletes it. Before a log is deleted, its job's timeline says so. If a pass is
interrupted, the next one finishes it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from trainshed.controller.parents import parent_of
from trainshed.core.errors import NotFound, RequestError
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.names import JobName, JobUid
from trainshed.core.retention import (
    LOG_DELETED,
    KeptLog,
    Retention,
    RetentionReport,
    age_in_words,
    jobs_due,
    log_deleted_message,
    logs_due,
    parse_age,
    size_in_words,
)
from trainshed.core.units import Nanos
from trainshed.core.works import Work
from trainshed.engines.streams import LogInventory
from trainshed.eventloop.background import Crew
from trainshed.store.port import Created, JobQuery
from trainshed.store.sqlite.jobs import Intake
from trainshed.store.sqlite.reader import Reader
from trainshed.telemetry.lines import about
from trainshed.telemetry.meters import Meters

log = logging.getLogger(__name__)

FIRST_PASS: Final = 60.0
"""Seconds between the service's start and the first pass."""
PAUSE: Final = 900.0
"""Seconds between two passes."""
_BREATH: Final = 0.01
"""Seconds between two deletions, in which requests and jobs go on."""
_PAGE: Final = 500
_BLOCK: Final = 20
"""Logs that are measured by one call in a thread."""


class Removals(Struct, frozen=True):
    """How things are deleted. `job`: as a request does it, with everything beside its record; raises
    RequestError. `log`: raises OSError."""

    job: Callable[[JobName], Awaitable[object]]
    log: Callable[[JobUid], Awaitable[None]]


class _Over(Struct, frozen=True):
    """What is remembered of a job that is over."""

    uid: JobUid
    name: JobName
    ended: Nanos


@dataclass(slots=True)
class RetentionTimer:
    """Deletes what is due now and then. Does nothing if no setting is set."""

    retention: Retention
    reader: Reader
    intake: Intake
    inventory: LogInventory
    removals: Removals
    now: Callable[[], int]
    meters: Meters
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    report: RetentionReport = field(init=False)
    _crew: Crew = field(init=False, default_factory=Crew)
    #: Logs of jobs that are over, so that they do not grow.
    _logs: dict[JobUid, KeptLog] = field(init=False, default_factory=dict[JobUid, KeptLog])

    def __post_init__(self) -> None:
        self.report = RetentionReport(self.retention)

    def start(self) -> None:
        """Begin to delete, if any setting is set."""
        if self.retention.is_set:
            self._crew.keep(self._run, "retention")

    async def close(self) -> None:
        """Delete nothing more."""
        await self._crew.close()

    async def _run(self) -> None:
        await self.sleep(FIRST_PASS)
        while True:
            await self.look()
            await self.sleep(PAUSE)

    async def look(self) -> None:
        """Delete everything that is due now."""
        jobs, logs, freed = self.report.jobs, self.report.logs, self.report.freed
        if self.retention.jobs:
            for over in await self._jobs_due():
                await self._delete(over)
                await self.sleep(_BREATH)
        if self.retention.size:
            await self._take_stock()
            for due in logs_due(list(self._logs.values()), self.retention):
                await self._delete_log(due)
                await self.sleep(_BREATH)
            self.report.kept = sum(kept_log.bytes for kept_log in self._logs.values())
        if (jobs, logs) != (self.report.jobs, self.report.logs):
            log.info(
                "retention: %d jobs and %d further logs deleted, %.1f MB",
                self.report.jobs - jobs,
                self.report.logs - logs,
                (self.report.freed - freed) / 1e6,
            )

    # --- jobs ---

    async def _jobs_due(self) -> list[_Over]:
        """Return the due jobs that clients made, or whose makers were deleted; `_delete` also deletes what
        each of them made."""
        before = self.now() - parse_age(self.retention.jobs)
        query = JobQuery("", None, None, limit=_PAGE)
        over = [_Over(work.uid, work.name, work.ended) for work in await self.reader.orphans()]
        while True:
            # No job ends before it was created, so the index on creation finds all that can be due.
            page = await self.reader.matching(query, Created(0, before - 1))
            over += [_Over(work.uid, work.name, work.ended) for work, _ in page.jobs]
            if page.went_to is None:
                return jobs_due(over, before)
            query = JobQuery("", None, None, limit=_PAGE, after=page.went_to)

    async def _delete(self, over: _Over) -> bool:
        """Delete what a job has made, then the job. Return False if something of it is in use, and stays for
        now."""
        try:
            for child in await self.reader.children(over.uid):
                if not await self._delete(_Over(child.uid, child.name, child.ended)):
                    return False
            size = await asyncio.to_thread(self.inventory.size, over.uid)
            await self.removals.job(over.name)
        except NotFound:
            # A client has deleted it.
            return True
        except RequestError as refused:
            about(log, over.uid).warning("not deleted by the retention of jobs: %s", refused)
            return False
        self._logs.pop(over.uid, None)
        self.report.jobs += 1
        self._freed("jobs", size)
        kept = age_in_words(self.retention.jobs)
        about(log, over.uid).info("%s deleted: jobs are kept for %s", over.name, kept)
        return True

    # --- logs ---

    async def _take_stock(self) -> None:
        """Bring `_logs` up to date. Known logs are not measured again."""
        there = await asyncio.to_thread(self.inventory.jobs)
        for uid in self._logs.keys() - there:
            del self._logs[uid]
        fresh = sorted(there - self._logs.keys())
        for first in range(0, len(fresh), _BLOCK):
            over: list[tuple[JobUid, int]] = []
            for uid in fresh[first : first + _BLOCK]:
                if (ended := await self._over_since(uid)) is not None:
                    over.append((uid, ended))
            sizes = await asyncio.to_thread(_sizes, self.inventory, over)
            self._logs.update(sizes)
            await self.sleep(_BREATH)

    async def _over_since(self, uid: JobUid) -> int | None:
        """Return when a job and all its parents, which still read what it measured, were over, in ns since
        the epoch; 0 = the job was deleted and has left its log. None = one of them is not over, or cannot be
        read."""
        ended = 0
        wanted: JobUid | None = uid
        while wanted is not None:
            try:
                work: Work = (await self.reader.job_by_uid(wanted))[0]
            except NotFound:
                # A parent may have been deleted before the job.
                return ended
            except RequestError:
                return None
            if not work.ended:
                return None
            ended = max(ended, work.ended)
            wanted = parent_of(work)
        return ended

    async def _delete_log(self, due: KeptLog) -> None:
        uid, kept = JobUid(due.uid), size_in_words(self.retention.size)
        try:
            await self._tell(uid, kept)
            await self.removals.log(uid)
        except (OSError, RequestError) as failure:
            job_log = about(log, uid)
            job_log.warning("its log was not deleted: %s; the next pass tries again", failure)
            return
        self._logs.pop(uid, None)
        self.report.logs += 1
        self._freed("logs", due.bytes)
        about(log, uid).info("its log was deleted (%d bytes): logs are kept %s", due.bytes, kept)

    async def _tell(self, uid: JobUid, kept: str) -> None:
        """Add an entry about the log to the timelines of the job and its parents, whose logs contain it; once
        each. `kept`: which logs are."""
        now = self.now()
        wanted: JobUid | None = uid
        while wanted is not None:
            try:
                work, _ = await self.reader.job_by_uid(wanted)
            except NotFound:
                return
            timeline = await self.reader.timeline(wanted)
            if not any(entry.kind == LOG_DELETED for entry in timeline):
                message = log_deleted_message(kept, now)
                entry = TimelineEntry(now, LOG_DELETED, message, {"kept": kept})
                await self.intake.tell(wanted, (entry,))
            wanted = parent_of(work)

    def _freed(self, what: str, size: int) -> None:
        self.report.freed += size
        self.meters.deleted[(what,)] += 1
        self.meters.freed += size


def _sizes(inventory: LogInventory, over: list[tuple[JobUid, int]]) -> dict[JobUid, KeptLog]:
    return {uid: KeptLog(uid, ended, inventory.size(uid)) for uid, ended in over}
