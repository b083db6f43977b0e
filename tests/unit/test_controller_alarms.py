"""Alarms are measured by a clock that nobody sets (spec/invariants#one-clock), under virtual time."""

import asyncio

import pytest

from tests.sim.engine.clock import Clock
from tests.sim.virtual import run
from trainshed.controller.mailboxes import LONGEST_DELAY, Alarms
from trainshed.core.lifecycle.events import PauseOver
from trainshed.core.lifecycle.machine import Deadline
from trainshed.core.names import JobUid

SECOND = 10**9
START = 1_700_000_000 * SECOND
JOB = JobUid(1)


def deadlines(*seconds: int) -> tuple[Deadline, ...]:
    """Deadlines that many seconds after the start."""
    return tuple(Deadline(at, PauseOver(at)) for at in (START + n * SECOND for n in seconds))


async def rung(
    clock: Clock, jumps: dict[int, int], first: tuple[Deadline, ...], then: tuple[Deadline, ...]
) -> list[tuple[int, int]]:
    """Which of the `first` deadlines ring, and when, in seconds from the start; from the first ring on the
    job has the deadlines `then`. `jumps`: seconds by which the wall clock is ahead from a second on."""
    heard: list[tuple[int, int]] = []

    def ring(uid: JobUid, deadline: Deadline) -> None:
        heard.append(
            ((deadline.at - START) // SECOND, round((clock.now - START) / SECOND)),
        )
        alarms.set(uid, then if len(heard) == 1 else ())

    alarms = Alarms(lambda: clock.wall, ring)
    for second, ahead in jumps.items():
        clock.at(START + second * SECOND, lambda ahead=ahead: clock.set_wall(ahead * SECOND))
    alarms.set(JOB, first)
    # As each commit of a job does.
    for _ in range(20):
        await asyncio.sleep(400)
        if not heard:
            alarms.set(JOB, first)
    alarms.close()
    return heard


@pytest.mark.parametrize("ahead", [7200, -7200])
def test_a_clock_that_is_set_moves_no_limit(ahead: int) -> None:
    """A job with a limit of an hour, and a moment before it."""
    clock, both = Clock(START), deadlines(600, 3600)
    heard = run(clock, rung(clock, {30: ahead}, both, both[1:]))
    assert heard == [(600, 600), (3600, 3600)]


def test_what_comes_again_is_measured_anew() -> None:
    """Nobody is rung for it over and over, where the clock was set back and it has not come by that."""
    clock, one = Clock(START), deadlines(600)
    assert run(clock, rung(clock, {30: -1000}, one, one)) == [(600, 600), (600, 1600)]


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
