"""How streams of news keep pace, under virtual time."""

import asyncio

from tests.sim import virtual
from tests.sim.engine.clock import Clock
from trainshed.api.calls.streams import Pace
from trainshed.store.notices import Notices


def looks(news: list[float]) -> list[float]:
    """When a stream looks, in seconds, of which there is something new at these moments."""
    moments: list[float] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        begin, pace = loop.time(), Pace(Notices())
        for at in news:
            await asyncio.sleep(max(0.0, begin + at - loop.time()))
            await pace.begin()
            moments.append(round(loop.time() - begin, 3))
            pace.looked()

    virtual.run(Clock(0), story(), [])
    return moments


def test_the_end_of_a_short_job_is_told_when_it_comes() -> None:
    states = [0.0, 0.004, 0.008, 0.02, 0.05, 0.06]
    assert looks(states) == states


def test_a_job_that_changes_all_the_time_is_looked_at_every_20_ms() -> None:
    moments = looks([0.001 * number for number in range(40)])
    assert moments[:4] == [0.0, 0.001, 0.002, 0.003]
    assert moments[-1] - moments[9] == round(30 * 0.02, 3)
