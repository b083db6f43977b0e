"""Virtual time: it passes only when nobody has anything left to do, and says so when nothing will ever
come."""

import asyncio

import pytest

from tests.sim import virtual
from tests.sim.engine.clock import Clock

SECOND = 10**9
YEAR = 365 * 24 * 3600


def test_a_year_passes_at_once_and_to_the_nanosecond() -> None:
    clock = Clock(7)

    async def body() -> float:
        await asyncio.sleep(YEAR)
        return asyncio.get_running_loop().time()

    assert virtual.run(clock, body()) == pytest.approx(YEAR)
    assert abs(clock.now - 7 - YEAR * SECOND) < SECOND // 1000


def test_the_world_and_the_service_take_turns() -> None:
    clock, seen = Clock(), list[str]()

    async def body() -> None:
        heard = asyncio.Event()

        def happens() -> None:
            seen.append("world")
            heard.set()

        clock.at(2 * SECOND, happens)
        await asyncio.sleep(1)
        seen.append("service")
        await heard.wait()
        seen.append("heard")

    virtual.run(clock, body())
    assert seen == ["service", "world", "heard"]
    assert clock.now == 2 * SECOND


def test_waiting_for_what_never_comes_is_an_error() -> None:
    async def body() -> None:
        await asyncio.Event().wait()

    with pytest.raises(virtual.Deadlock):
        virtual.run(Clock(), body())


def test_going_round_while_time_stands_still_is_an_error() -> None:
    async def body() -> None:
        while True:  # noqa: ASYNC110 - nothing is waited for
            await asyncio.sleep(0)

    with pytest.raises(virtual.Livelock):
        virtual.run(Clock(), body())


def test_a_crash_gives_no_turn_to_what_was_running() -> None:
    clock, seen = Clock(), list[str]()

    async def other() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.sleep(0)
            seen.append("tidied up")

    async def body() -> None:
        asyncio.create_task(other())  # noqa: RUF006 - it ends with its loop
        await asyncio.sleep(1)
        raise SystemExit("killed")

    with pytest.raises(SystemExit):
        virtual.run(clock, body())
    assert seen == []
    assert clock.now == SECOND


def test_a_task_that_dies_unnoticed_is_told() -> None:
    failures: list[BaseException] = []

    async def dies() -> None:
        raise ValueError("nobody looks")

    async def body() -> None:
        asyncio.create_task(dies())  # noqa: RUF006 - it is to be dropped
        await asyncio.sleep(1)

    virtual.run(Clock(), body(), failures)
    assert [str(failure) for failure in failures] == ["nobody looks"]
