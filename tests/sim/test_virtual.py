"""Virtual time: it passes only when nobody has anything left to do, and says so when nothing will ever
come."""

import asyncio

import pytest

from tests.sim import virtual
from tests.sim.engine.clock import Clock

SECOND = 10**9


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
