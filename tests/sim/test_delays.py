"""The reasons why an admitted job does not start: an engine's report or failure appears on the job's timeline
and in the wait reasons of the API (spec/operations#why-it-waits).
"""

from pathlib import Path

import pytest

from tests.sim.scripted_world import World, world
from tests.unit.jobs import job
from tests.waiting import until
from trainshed.controller import carrier
from trainshed.core.capacity import Delay, WaitReason
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.engines.port import EngineUnavailable, StartWaits, StillWaiting

BUSY = Delay(WaitReason.CLUSTER, "The cluster has not given its node yet", word="Busy", position=3)


async def delays(w: World, uid: JobUid) -> list[str]:
    return [e.message for e in await w.store.reader.timeline(uid) if e.kind == "delayed"]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "RETRY_DELAYS", (0.001, 0.001, 0.001, 0.01))


async def test_wait_reason_of_the_engine_is_shown_until_the_job_starts(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.engine.always["allocate"] = StillWaiting("it was told")
        uid = await w.create(job(1))
        await w.state(uid, JobState.PREPARING)
        w.engine.events.put_nowait(StartWaits(uid, 1, BUSY))
        await w.until(uid, lambda stored: stored.delay is not None)
        waiting = w.controller.explain_wait(uid)
        assert waiting is not None and waiting.position == 3
        assert (waiting.reason, waiting.message) == (WaitReason.CLUSTER, BUSY.message)
        # Engines repeat it after a restart: it takes effect at once, and appears on the timeline once.
        await w.crash()
        w.engine.events.put_nowait(StartWaits(uid, 1, BUSY))
        w.engine.always.clear()
        await w.state(uid, JobState.RUNNING)
        await until(lambda: w.controller.explain_wait(uid) is None)
        assert await delays(w, uid) == [f"{BUSY.message}; number 3 in its queue."]


async def test_temporary_engine_failure_is_reported_once(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.engine.always["allocate"] = EngineUnavailable("node n1 does not answer")
        uid = await w.create(job(1))
        await w.until(uid, lambda stored: stored.delay is not None)
        waiting = w.controller.explain_wait(uid)
        assert waiting is not None and waiting.reason is WaitReason.ENGINE
        assert waiting.message.endswith("node n1 does not answer")
        w.engine.always.clear()
        await w.state(uid, JobState.RUNNING)
        await until(lambda: w.controller.explain_wait(uid) is None)
        [delay] = await delays(w, uid)
        assert delay.startswith("The engine cannot start the job now and retries every")
        assert delay.endswith(": node n1 does not answer.")
