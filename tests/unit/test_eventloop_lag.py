"""The lag meter: what is late, what was computed, and where the loop was (docs/adr/0042)."""

import asyncio
import logging
import time

import pytest

from trainshed.eventloop import lag
from trainshed.eventloop.lag import Lag, LagMeter


def measured(block: float, *, computing: bool) -> Lag:
    """What a meter says after the loop has stood still for so many seconds."""

    async def story() -> Lag:
        meter = LagMeter()
        meter.start()
        await asyncio.sleep(0.1)
        if computing:
            end = time.thread_time() + block
            while time.thread_time() < end:
                pass
        else:
            time.sleep(block)
        await asyncio.sleep(0.1)
        meter.close()
        return meter.reading()

    return asyncio.run(story())


def test_what_is_late_is_logged_with_where_the_loop_was(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        measured(1.0, computing=False)
    messages = [record.getMessage() for record in caplog.records if record.name == lag.__name__]
    where, how_late = messages
    assert "the event loop has been waiting for" in where
    assert "time.sleep(block)" in where
    assert "the event loop was late by" in how_late
