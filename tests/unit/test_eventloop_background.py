"""Background tasks: logged failures and automatic restarts. The lag meter (docs/adr/0042)."""

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


def test_failure_of_a_background_task_is_logged_with_the_job_and_handled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def dies() -> None:
        raise RuntimeError("the handler is closed")

    async def story() -> Exception:
        healed = asyncio.get_running_loop().create_future()
        # A reference prevents a report by the garbage collector.
        task = background.begin(dies(), "job 12: suggesting", healed.set_result)
        failure = await healed
        assert task.done()
        return failure

    with caplog.at_level(logging.ERROR):
        assert isinstance(asyncio.run(story()), RuntimeError)
    assert "job 12: suggesting failed: RuntimeError('the handler is closed')" in caplog.text
    assert "Traceback" in caplog.text


def test_failed_permanent_task_is_restarted_at_growing_intervals() -> None:
    """The test compares the start times in virtual time."""
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


def test_failure_of_an_unawaited_thread_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise OSError("no such tool")

    with concurrent.futures.ThreadPoolExecutor(1) as workers:
        background.log_failure(workers.submit(fails), "looking for container tools")
    assert "looking for container tools failed: OSError('no such tool')" in caplog.text


def test_delay_of_the_event_loop_and_cpu_time_of_the_delay_are_measured() -> None:
    async def story() -> None:
        meter = LagMeter()
        meter.start()
        await asyncio.sleep(0.1)
        time.sleep(1.0)
        await asyncio.sleep(0.1)
        meter.close()
        lag = meter.reading()
        assert lag.recent == lag.longest > 0.9 > lag.cpu_time

    asyncio.run(story())
