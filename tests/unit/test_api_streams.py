"""Polling intervals of streams of job changes, under virtual time."""

import asyncio

from tests.sim import virtual
from tests.sim.engine.clock import Clock
from trainshed.api.calls.streams import Pace
from trainshed.store.notices import Notices


def poll_times(news: list[float]) -> list[float]:
    """Return the times, in seconds, at which a stream polls when its job changes at the times `news`."""
    moments: list[float] = []

    async def run_stream() -> None:
        loop = asyncio.get_running_loop()
        begin, pace = loop.time(), Pace(Notices())
        for at in news:
            await asyncio.sleep(max(0.0, begin + at - loop.time()))
            await pace.start_read()
            moments.append(round(loop.time() - begin, 3))
            pace.finish_read()

    virtual.run(Clock(0), run_stream(), [])
    return moments


def test_stream_reports_changes_of_a_short_job_immediately() -> None:
    states = [0.0, 0.004, 0.008, 0.02, 0.05, 0.06]
    assert poll_times(states) == states


def test_stream_polls_a_busy_job_every_20_ms() -> None:
    moments = poll_times([0.001 * number for number in range(40)])
    assert moments[:4] == [0.0, 0.001, 0.002, 0.003]
    assert moments[-1] - moments[9] == round(30 * 0.02, 3)
