"""Searches a job's log for the lines that its drills (faults that users order) wait for, and reports matches
as events."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from msgspec import Struct, field

from trainshed.core.lifecycle.events import DrillTriggered, Event
from trainshed.core.lifecycle.machine import drill_target
from trainshed.core.lifecycle.records import Drill, Job
from trainshed.core.names import JobUid
from trainshed.core.patterns import Regex, compile_regex
from trainshed.eventloop.background import keep
from trainshed.store.logs.lines import LogCursor, LogPage
from trainshed.store.logs.reader import LogReader
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

_PAGE = 500
_MAX_READ_CHARS = 4096
"""Maximum number of characters of a line that are matched with the pattern of a drill (a fault that the user
ordered)."""


def _any_matches(wanted: Regex, page: LogPage) -> bool:
    return any(wanted.found_in(line.text[:_MAX_READ_CHARS]) for line in page.lines)


class _Watch(Struct):
    """The progress of the log search for the drills (ordered faults) of one job."""

    #: The last known state of the job.
    job: Job
    #: The position up to which the log was searched, by the number of the drill (ordered fault).
    cursors: dict[int, LogCursor] = {}
    #: Set when there may be new lines.
    due: asyncio.Event = field(default_factory=asyncio.Event)
    #: The task that searches while the job is watched.
    task: asyncio.Task[None] | None = None


class Watchers:
    """Searches logs for the lines that drills (faults that users order) wait for. Has no cost for jobs
    without a drill that waits for a line."""

    def __init__(
        self, logs: LogReader, now: Callable[[], int], report: Callable[[JobUid, Event], None]
    ) -> None:
        self._logs = logs
        self._now = now
        self._report = report
        self._watches: dict[JobUid, _Watch] = {}

    def lines_written(self, job: Job) -> None:
        """Search for the lines that the job's pending drills (ordered faults) wait for. Called when the job
        has new lines or was stored again."""
        if not any(drill.is_armed and drill.at_line for drill in job.drills):
            self.forget(job.uid)
            return
        watch = self._watches.get(job.uid)
        if watch is None:
            watch = self._watches[job.uid] = _Watch(job)
            search = partial(self._search, watch)
            watch.task = keep(search, f"job {job.uid}: searching its log")
        watch.job = job
        watch.due.set()

    def forget(self, uid: JobUid) -> None:
        """Stop the search for a job."""
        watch = self._watches.pop(uid, None)
        if watch is not None and watch.task is not None:
            watch.task.cancel()

    def close(self) -> None:
        for uid in tuple(self._watches):
            self.forget(uid)

    async def _search(self, watch: _Watch) -> None:
        while True:
            await watch.due.wait()
            watch.due.clear()
            job = watch.job
            # A line may arrive before the report that its replica runs. Do not inject the fault of a drill
            # before that report.
            armed = [
                (drill, compile_regex(drill.at_line))
                for drill in job.drills
                if drill.is_armed and drill.at_line and drill_target(job, drill) is not None
            ]
            try:
                for drill, wanted in armed:
                    if await self._has_match(job.uid, drill, wanted, watch):
                        self._report(job.uid, DrillTriggered(drill.number, self._now()))
            except OSError as failure:
                about(log, job.uid).warning("log not searched: %s", failure)

    async def _has_match(self, uid: JobUid, drill: Drill, wanted: Regex, watch: _Watch) -> bool:
        """Return whether the log contains a new matching line that is newer than the order of the drill (a
        fault)."""
        while True:
            page = await self._logs.page(
                uid,
                replicas={drill.replica},
                start=drill.ordered,
                after=watch.cursors.get(drill.number),
                limit=_PAGE,
            )
            if page.lines:
                watch.cursors[drill.number] = page.lines[-1].cursor
            # This runs in a thread, because the program may have written megabytes of lines, and the pattern
            # comes from a caller.
            if await asyncio.to_thread(_any_matches, wanted, page):
                return True
            if page.next is None:
                return False
