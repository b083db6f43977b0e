"""How the log is searched for the lines that drills wait for (spec/operations#drills). No files, no clock."""

import asyncio

from msgspec.structs import replace

from tests.unit.jobs import CREATED, PRIMARY, job
from trainshed.controller.watching import Watchers
from trainshed.core.lifecycle.events import DrillTriggered, Event
from trainshed.core.lifecycle.records import Drill, DrillKind, Job, Replica
from trainshed.core.lifecycle.states import AttemptState, ReplicaState
from trainshed.core.names import JobUid
from trainshed.store.logs.lines import LogCursor, LogLine, LogPage, Severity, Stream
from trainshed.store.logs.reader import LogReader


class Log(LogReader):
    """One line, which is read when it is `released`."""

    def __init__(self, text: str) -> None:
        self.asked = asyncio.Event()
        self.released = asyncio.Event()
        self._text = text

    async def page(self, uid: JobUid, *, after: LogCursor | None = None, **_: object) -> LogPage:
        self.asked.set()
        await self.released.wait()
        line = LogLine(uid, 1, PRIMARY, 0, CREATED + 1, Stream.STDOUT, self._text, Severity.INFO)
        return LogPage(() if after else (line,), None)


def drilled(*patterns: str) -> Job:
    drills = tuple(
        Drill(number, DrillKind.KILL, PRIMARY, CREATED, at_line=pattern)
        for number, pattern in enumerate(patterns, start=1)
    )
    return replace(running(job()), drills=drills)


def running(job: Job) -> Job:
    replica = Replica(PRIMARY, ReplicaState.RUNNING, 1, "node-0", started=CREATED)
    return replace(job, phase=AttemptState.RUNNING, replicas=(replica,))


async def test_a_line_that_is_heard_before_the_start_of_its_replica_is_not_lost() -> None:
    log = Log("step 7")
    log.released.set()
    fired: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
    watchers = Watchers(log, lambda: CREATED, lambda _, event: fired.set_result(event))
    drilled_job = drilled("step 7")
    watchers.lines_written(replace(drilled_job, phase=AttemptState.STARTING, replicas=()))
    await asyncio.sleep(0)
    assert not log.asked.is_set()
    watchers.lines_written(drilled_job)
    assert await asyncio.wait_for(fired, 60) == DrillTriggered(1, CREATED)
    watchers.close()


async def test_a_drill_ordered_during_a_search_finds_its_line_though_it_is_the_last_one() -> None:
    log = Log("step 7")
    fired: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
    watchers = Watchers(log, lambda: CREATED, lambda _, event: fired.set_result(event))
    watchers.lines_written(drilled("never"))
    await log.asked.wait()
    watchers.lines_written(drilled("never", "step 7"))
    log.released.set()
    assert await asyncio.wait_for(fired, 60) == DrillTriggered(2, CREATED)
    watchers.close()
