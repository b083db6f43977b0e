"""Alarms are measured by a clock that nobody sets (spec/invariants#one-clock), under virtual time."""

import asyncio

from tests.sim.engine.clock import Clock
from tests.sim.virtual import run
from trainshed.controller.mailboxes import LONGEST_DELAY, Alarms, seconds_until
from trainshed.core.lifecycle.events import PauseOver
from trainshed.core.lifecycle.machine import Deadline
from trainshed.core.names import JobUid

SECOND = 10**9
START = 1_700_000_000 * SECOND
JOB = JobUid(1)


def deadlines(*seconds: int) -> tuple[Deadline, ...]:
    """Deadlines that many seconds after the start."""
    return tuple(Deadline(at, PauseOver(at)) for at in (START + n * SECOND for n in seconds))


def test_a_limit_of_days_is_not_met_early() -> None:
    clock, heard = Clock(START), list[int]()

    async def wait() -> None:
        alarms = Alarms(lambda: clock.wall, lambda _, deadline: heard.append(clock.now))
        (late,) = deadlines(3 * round(LONGEST_DELAY))
        alarms.set(JOB, (late,))
        await asyncio.sleep(3 * LONGEST_DELAY - 1)
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
