"""Search of the log for lines that trigger drills (spec/operations#drills), without files or a clock.

Alarms use a monotonic clock (spec/invariants#one-clock), tested under virtual time.
"""

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
    """A log with one line, whose read waits for the event `released`."""

    def __init__(self, text: str) -> None:
        self.asked = asyncio.Event()
        self.released = asyncio.Event()
        self._text = text

    async def page(self, uid: JobUid, *, after: LogCursor | None = None, **_: object) -> LogPage:
        self.asked.set()
        await self.released.wait()
        line = LogLine(uid, 1, PRIMARY, 0, CREATED + 1, Stream.STDOUT, self._text, Severity.INFO)
        return LogPage(() if after else (line,), None)


def job_with_drills(*patterns: str) -> Job:
    drills = tuple(
        Drill(number, DrillKind.KILL, PRIMARY, CREATED, at_line=pattern)
        for number, pattern in enumerate(patterns, start=1)
    )
    return replace(running(job()), drills=drills)


def running(job: Job) -> Job:
    replica = Replica(PRIMARY, ReplicaState.RUNNING, 1, "node-0", started=CREATED)
    return replace(job, phase=AttemptState.RUNNING, replicas=(replica,))


async def test_fault_drill_fires_on_a_log_line_printed_before_the_replica_start_event() -> None:
    log = Log("step 7")
    log.released.set()
    fired: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
    watchers = Watchers(log, lambda: CREATED, lambda _, event: fired.set_result(event))
    drilled_job = job_with_drills("step 7")
    watchers.lines_written(replace(drilled_job, phase=AttemptState.STARTING, replicas=()))
    await asyncio.sleep(0)
    assert not log.asked.is_set()
    watchers.lines_written(drilled_job)
    assert await asyncio.wait_for(fired, 60) == DrillTriggered(1, CREATED)
    watchers.close()


async def test_fault_drill_requested_during_a_log_search_also_finds_the_last_log_line() -> None:
    log = Log("step 7")
    fired: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
    watchers = Watchers(log, lambda: CREATED, lambda _, event: fired.set_result(event))
    watchers.lines_written(job_with_drills("never"))
    await log.asked.wait()
    watchers.lines_written(job_with_drills("never", "step 7"))
    log.released.set()
    assert await asyncio.wait_for(fired, 60) == DrillTriggered(2, CREATED)
    watchers.close()


SECOND = 10**9
START = 1_700_000_000 * SECOND
JOB = JobUid(1)
DAY = 24 * 3600


def deadlines(*seconds: int) -> tuple[Deadline, ...]:
    """Return deadlines at these numbers of seconds after the start."""
    return tuple(Deadline(at, PauseOver(at)) for at in (START + n * SECOND for n in seconds))


def test_job_deadline_that_is_days_ahead_does_not_fire_early() -> None:
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


def test_sleep_until_a_deadline_never_ends_before_the_deadline() -> None:
    """If a sleep ended too early, the caller would repeat it without progress, because the clock has not
    reached the deadline."""
    clock = Clock(2_482_063 * SECOND)

    async def wait() -> None:
        for left in (1, 999, SECOND + 67, 3 * SECOND + 112_960_067):
            at = clock.now + left
            await asyncio.sleep(seconds_until(at, clock.now))
            assert clock.now >= at

    run(clock, wait())
