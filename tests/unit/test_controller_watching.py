"""How the log is searched for the lines that drills wait for (spec/operations#drills). No files, no clock.
Alarms are measured by a clock that nobody sets (spec/invariants#one-clock), under virtual time."""

import asyncio

from msgspec.structs import replace

from tests.sim.engine.clock import Clock
from tests.sim.virtual import run
from tests.unit.jobs import CREATED, PRIMARY, job
from trainshed.controller.mailboxes import Alarms, seconds_until
from trainshed.controller.watching import Watchers
from trainshed.core.lifecycle.events import DrillTriggered, Event, PauseOver
from trainshed.core.lifecycle.machine import Deadline
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


SECOND = 10**9
START = 1_700_000_000 * SECOND
JOB = JobUid(1)
DAY = 24 * 3600


def deadlines(*seconds: int) -> tuple[Deadline, ...]:
    """Deadlines that many seconds after the start."""
    return tuple(Deadline(at, PauseOver(at)) for at in (START + n * SECOND for n in seconds))


def test_a_limit_of_days_is_not_met_early() -> None:
    clock, heard = Clock(START), list[int]()

    async def wait() -> None:
        alarms = Alarms(lambda: clock.wall, lambda _, deadline: heard.append(clock.now))
        (late,) = deadlines(3 * DAY)
        alarms.set(JOB, (late,))
        await asyncio.sleep(3 * DAY - 1)
        assert not heard
        await asyncio.sleep(2)

    run(clock, wait())
    assert len(heard) == 1


def test_a_timer_is_not_over_before_its_moment() -> None:
    """Else whoever looks then, and waits for what is left, looks again and again while the clock stands."""
    clock = Clock(2_482_063 * SECOND)

    async def wait() -> None:
        for left in (1, 999, SECOND + 67, 3 * SECOND + 112_960_067):
            at = clock.now + left
            await asyncio.sleep(seconds_until(at, clock.now))
            assert clock.now >= at

    run(clock, wait())
