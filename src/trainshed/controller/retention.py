"""Deletes jobs that have been over for long and logs that are too old or too many, as settings say: now and
then, one after the other, the oldest first; logs also at somebody's order. What is to go, `core.retention`
decides (ADR 77).

A job is deleted as a request deletes it. Of a log its job's timeline tells before it goes, and a pass that is
cut off is finished by the next one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from msgspec import Struct

from trainshed.controller.parents import parent_of
from trainshed.core.errors import NotFound, RequestError
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.names import JobName, JobUid
from trainshed.core.retention import (
    LOG_DELETED,
    KeptLog,
    LogCollection,
    LogDue,
    Retention,
    RetentionReport,
    age_in_words,
    jobs_due,
    log_deleted_message,
    logs_due,
    parse_age,
)
from trainshed.core.units import Nanos
from trainshed.core.works import Work
from trainshed.eventloop.background import Crew
from trainshed.store.conditions import Created
from trainshed.store.port import Intake, JobQuery, Reader
from trainshed.telemetry.lines import about
from trainshed.telemetry.meters import Meters

log = logging.getLogger(__name__)

FIRST_PASS: Final = 60.0
"""Seconds after the service's start."""
PAUSE: Final = 900.0
"""Seconds between two passes."""
_BREATH: Final = 0.01
"""Seconds between two deletions, for requests and jobs to go on."""
_PAGE: Final = 500
_BLOCK: Final = 20
"""Logs that are measured by one call in a thread."""


class Inventory(Protocol):
    """Which logs there are. Blocks on the disk: to be asked in a thread."""

    def jobs(self) -> Collection[JobUid]:
        """Every job that has one."""
        ...

    def size(self, uid: JobUid) -> int:
        """Bytes that it takes."""
        ...


class Removals(Struct, frozen=True):
    """How things are deleted. `job`: as a request would, with all that is beside its record; raises
    RequestError. `log`: raises OSError."""

    job: Callable[[JobName], Awaitable[object]]
    log: Callable[[JobUid], Awaitable[None]]


class _Over(Struct, frozen=True):
    """A job that is over, as it is remembered."""

    uid: JobUid
    name: JobName
    ended: Nanos


@dataclass(slots=True)
class RetentionTimer:
    """Deletes now and then what is due. Does nothing if no setting is set."""

    retention: Retention
    reader: Reader
    intake: Intake
    inventory: Inventory
    removals: Removals
    now: Callable[[], int]
    meters: Meters
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    report: RetentionReport = field(init=False)
    _crew: Crew = field(init=False, default_factory=Crew)
    #: Logs of jobs that are over: they grow no more.
    _logs: dict[JobUid, KeptLog] = field(init=False, default_factory=dict[JobUid, KeptLog])
    #: One look, or order, at a time.
    _looking: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.report = RetentionReport(self.retention)

    def start(self) -> None:
        """Begin to look, if there is anything to do."""
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

    async def collect(
        self, retention: Retention, most: int, *, dry_run: bool = False
    ) -> LogCollection:
        """Delete, at somebody's order, the `most` logs that are due first, by an age and a size that need not
        be those of the settings. `dry_run`: none, but say which."""
        async with self._looking:
            await self._take_stock()
            due = logs_due(list(self._logs.values()), retention, self.now())
            done: list[LogDue] = []
            for each in due[:most]:
                if dry_run or await self._delete_log(each):
                    done.append(each)
            return LogCollection(tuple(done), len(due[most:]))

    async def look(self) -> None:
        """Delete all that is due now."""
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        jobs, logs, freed = self.report.jobs, self.report.logs, self.report.freed
        if self.retention.jobs:
            for over in await self._jobs_due():
                await self._delete(over)
                await self.sleep(_BREATH)
        if self.retention.logs or self.retention.size:
            await self._take_stock()
            for due in logs_due(list(self._logs.values()), self.retention, self.now()):
                await self._delete_log(due)
                await self.sleep(_BREATH)
            self.report.kept = sum(each.bytes for each in self._logs.values())
        self.report.last_pass = self.now()
        if (jobs, logs) != (self.report.jobs, self.report.logs):
            log.info(
                "retention: %d jobs and %d further logs deleted, %.1f MB",
                self.report.jobs - jobs,
                self.report.logs - logs,
                (self.report.freed - freed) / 1e6,
            )

    # --- jobs ---

    async def _jobs_due(self) -> list[_Over]:
        """The jobs of clients that are due; `_delete` takes with each what it has made."""
        before = self.now() - parse_age(self.retention.jobs)
        query = JobQuery("", None, None, limit=_PAGE)
        found: list[_Over] = []
        while True:
            # Nothing ends before it was created: the index finds all that can be due.
            page = await self.reader.matching(query, Created(0, before - 1))
            found += [_Over(work.uid, work.name, work.ended) for work, _ in page.jobs]
            if page.went_to is None:
                return jobs_due(found, before)
            query = JobQuery("", None, None, limit=_PAGE, after=page.went_to)

    async def _delete(self, over: _Over) -> bool:
        """Delete what a job has made, then the job. False: something of it is in use, and stays for now."""
        try:
            for child in await self.reader.children(over.uid):
                if not await self._delete(_Over(child.uid, child.name, child.ended)):
                    return False
            size = await asyncio.to_thread(self.inventory.size, over.uid)
            await self.removals.job(over.name)
        except NotFound:
            # Somebody else has deleted it.
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
        """Bring `_logs` up to date. A log that is known is not measured again."""
        there = await asyncio.to_thread(self.inventory.jobs)
        for uid in self._logs.keys() - there:
            del self._logs[uid]
        fresh = sorted(there - self._logs.keys())
        for first in range(0, len(fresh), _BLOCK):
            over: list[tuple[JobUid, int]] = []
            for uid in fresh[first : first + _BLOCK]:
                ended = await self._over_since(uid)
                if ended is not None:
                    over.append((uid, ended))
            sizes = await asyncio.to_thread(partial(_sizes, self.inventory, over))
            self._logs.update(sizes)
            await self.sleep(_BREATH)

    async def _over_since(self, uid: JobUid) -> int | None:
        """When a job was over, and whatever had made it, which still reads what the job measured (ns since
        the epoch); 0 = the job was deleted and has left its log behind. None = it is not over, or cannot be
        read."""
        ended = 0
        wanted: JobUid | None = uid
        while wanted is not None:
            try:
                work: Work = (await self.reader.job_by_uid(wanted))[0]
            except NotFound:
                # What made a job may have been deleted before the job.
                return ended
            except RequestError:
                return None
            if not work.ended:
                return None
            ended = max(ended, work.ended)
            wanted = parent_of(work)
        return ended

    async def _delete_log(self, due: LogDue) -> bool:
        """Whether it is gone."""
        uid = JobUid(due.log.uid)
        try:
            await self._tell(uid, due)
            await self.removals.log(uid)
        except (OSError, RequestError) as failure:
            told = about(log, uid)
            told.warning("its log was not deleted: %s; the next pass tries again", failure)
            return False
        self._logs.pop(uid, None)
        self.report.logs += 1
        self._freed("logs", due.log.bytes)
        about(log, uid).info(
            "its log was deleted (%d bytes): logs are kept %s", due.log.bytes, due.kept
        )
        return True

    async def _tell(self, uid: JobUid, due: LogDue) -> None:
        """Tell the job, once, and likewise what has made it: its log is made of those of its jobs."""
        now = self.now()
        wanted: JobUid | None = uid
        while wanted is not None:
            try:
                work, _ = await self.reader.job_by_uid(wanted)
            except NotFound:
                return
            told = await self.reader.timeline(wanted)
            if not any(entry.kind == LOG_DELETED for entry in told):
                message = log_deleted_message(due, now)
                entry = TimelineEntry(now, LOG_DELETED, message, {"kept": due.kept})
                await self.intake.tell(wanted, (entry,))
            wanted = parent_of(work)

    def _freed(self, what: str, size: int) -> None:
        self.report.freed += size
        self.meters.deleted[(what,)] += 1
        self.meters.freed += size


def _sizes(inventory: Inventory, over: list[tuple[JobUid, int]]) -> dict[JobUid, KeptLog]:
    return {uid: KeptLog(uid, ended, inventory.size(uid)) for uid, ended in over}
