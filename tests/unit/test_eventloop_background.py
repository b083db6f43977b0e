"""Work that nobody awaits: its death is heard, and what must not end is begun again. The lag meter
(docs/adr/0042)."""

import asyncio
import concurrent.futures
import itertools
import logging
import time

import pytest

from tests.sim import virtual
from tests.sim.engine.clock import Clock
from trainshed.eventloop import background
from trainshed.telemetry.meters import LagMeter


def test_the_death_of_a_task_is_logged_with_its_job_and_healed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def dies() -> None:
        raise RuntimeError("the handler is closed")

    async def story() -> Exception:
        healed = asyncio.get_running_loop().create_future()
        # Held, so that no garbage collector tells of it.
        task = background.begin(dies(), "job 12: suggesting", healed.set_result)
        failure = await healed
        assert task.done()
        return failure

    with caplog.at_level(logging.ERROR):
        assert isinstance(asyncio.run(story()), RuntimeError)
    assert "job 12: suggesting failed: RuntimeError('the handler is closed')" in caplog.text
    assert "Traceback" in caplog.text


def test_what_must_go_on_is_begun_again_after_pauses_that_grow() -> None:
    """Under virtual time: moments at which it was begun, until it comes to its end."""
    begun: list[float] = []
    failures: list[BaseException] = []

    async def work() -> None:
        begun.append(asyncio.get_running_loop().time())
        if len(begun) < 9:
            raise OSError("no space left")

    async def story() -> None:
        await background.keep(work, "job 12: its events")

    clock = Clock(0)
    virtual.run(clock, story(), failures)
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(begun)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert len(failures) == 8


def test_a_thread_that_fails_for_nobody_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise OSError("no such tool")

    with concurrent.futures.ThreadPoolExecutor(1) as workers:
        background.log_failure(workers.submit(fails), "looking for container tools")
    assert "looking for container tools failed: OSError('no such tool')" in caplog.text


def test_a_standstill_and_what_was_computed_in_it_are_measured() -> None:
    async def story() -> None:
        meter = LagMeter()
        meter.start()
        await asyncio.sleep(0.1)
        time.sleep(1.0)
        await asyncio.sleep(0.1)
        meter.close()
        lag = meter.reading()
        assert lag.recent == lag.longest > 0.9 > lag.computed

    asyncio.run(story())
