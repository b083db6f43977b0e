"""Virtual time passes only when no task is runnable, and raises an error when no event will ever come."""

import asyncio

import pytest

from tests.sim import virtual
from tests.sim.engine.clock import Clock

SECOND = 10**9


def test_virtual_time_raises_an_error_if_all_tasks_wait_forever() -> None:
    async def body() -> None:
        await asyncio.Event().wait()

    with pytest.raises(virtual.Deadlock):
        virtual.run(Clock(), body())


def test_virtual_time_raises_an_error_for_an_endless_loop_without_time_steps() -> None:
    async def body() -> None:
        while True:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)

    with pytest.raises(virtual.Livelock):
        virtual.run(Clock(), body())


def test_simulated_crash_runs_no_cleanup_of_running_tasks() -> None:
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


def test_unhandled_task_exception_is_reported() -> None:
    failures: list[BaseException] = []

    async def dies() -> None:
        raise ValueError("nobody looks")

    async def body() -> None:
        asyncio.create_task(dies())  # noqa: RUF006 - it is dropped on purpose
        await asyncio.sleep(1)

    virtual.run(Clock(), body(), failures)
    assert [str(failure) for failure in failures] == ["nobody looks"]
