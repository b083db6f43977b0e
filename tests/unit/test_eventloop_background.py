"""Work that nobody awaits: its death is heard, and what must not end is begun again. The lag meter: what is
late, what was computed, and where the loop was (docs/adr/0042)."""

import asyncio
import concurrent.futures
import itertools
import logging
import time

import pytest

from tests.sim import virtual
from tests.sim.engine.clock import Clock
from trainshed.eventloop import background, lag
from trainshed.eventloop.lag import LagMeter


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
        background.heed(workers.submit(fails), "looking for container tools")
    assert "looking for container tools failed: OSError('no such tool')" in caplog.text


def stand_still(block: float) -> None:
    """Have a meter watch a loop that does."""

    async def story() -> None:
        meter = LagMeter()
        meter.start()
        await asyncio.sleep(0.1)
        time.sleep(block)
        await asyncio.sleep(0.1)
        meter.close()

    asyncio.run(story())


def test_what_is_late_is_logged_with_where_the_loop_was(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A quarter of a second is what the loop may be late by on a busy machine before it stands still.
    monkeypatch.setattr(lag, "LATE", 0.75)
    with caplog.at_level(logging.WARNING):
        stand_still(2.0)
    messages = [record.getMessage() for record in caplog.records if record.name == lag.__name__]
    # A busy machine may have been late at another moment as well.
    where = [text for text in messages if "time.sleep(block)" in text]
    assert len(where) == 1 and "the event loop has been waiting for" in where[0]
    assert any("the event loop was late by" in text for text in messages)
