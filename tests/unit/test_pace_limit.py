"""How many replicas start, or are told to stop, at once (docs/adr/0042)."""

import asyncio

from tests.sim import virtual
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local.gangs import Key, PaceLimit
from trainshed.testing.engine.clock import Clock

KEYS: list[Key] = [(JobUid(7), 0, ReplicaId(1, number)) for number in range(5)]


def test_a_start_waits_until_another_has_started() -> None:
    async def story() -> None:
        limit = PaceLimit(2)
        entered: list[Key] = []

        async def start_all() -> None:
            for key in KEYS[:4]:
                await limit.start(key)
                entered.append(key)

        starting = asyncio.create_task(start_all())
        await asyncio.sleep(0.01)
        assert entered == KEYS[:2]
        limit.leave(KEYS[1])
        limit.leave(KEYS[1])  # Its start, then its end.
        await asyncio.sleep(0.01)
        assert entered == KEYS[:3]
        limit.leave(KEYS[4])  # Never entered.
        await asyncio.sleep(0.01)
        assert entered == KEYS[:3]
        limit.leave(KEYS[0])
        await starting

    virtual.run(Clock(0), story(), [])


def test_a_slow_start_does_not_hold_up_the_others_for_long() -> None:
    """It pulls an image, say; the limit is for what takes processors."""
    moments: list[float] = []

    async def story() -> None:
        limit = PaceLimit(1)
        for key in KEYS[:3]:
            await limit.start(key)
            moments.append(asyncio.get_running_loop().time())

    virtual.run(Clock(0), story(), [])
    assert [round(moment, 2) for moment in moments] == [0, 0.25, 0.5]


def test_a_grace_period_holds_up_the_stop_of_the_others_even_less() -> None:
    """Two hundred programs that save a checkpoint at SIGTERM all begin with it within moments."""
    moments: list[float] = []

    async def story() -> None:
        limit = PaceLimit(1)
        for key in KEYS[:3]:
            await limit.stop(key)
            moments.append(asyncio.get_running_loop().time())

    virtual.run(Clock(0), story(), [])
    assert [round(moment, 3) for moment in moments] == [0, 0.02, 0.04]
