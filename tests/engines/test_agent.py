"""A single agent: its trust in the service, and its use of the node's resources."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from tests.engines.conformance.stage import plan_in
from trainshed.core.lifecycle.records import StopNotice
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.port import EngineUnavailable, Slot, SlotRequest
from trainshed.replica import protocol
from trainshed_cluster.remote import agent, agent_process, messages
from trainshed_cluster.remote.channel import ChannelClosed
from trainshed_cluster.remote.credentials import Credential
from trainshed_cluster.remote.greeting import NotAdmitted
from trainshed_cluster.remote.messages import AgentDocument


def document_of(directory: Path, account: str, lease: float) -> AgentDocument:
    """An agent's document on node a for the first attempt. `account`: its identity at the service."""
    return AgentDocument(
        credential=Credential(account, "", 0, "", "", ""),
        job_uid=JobUid(1),
        attempt=1,
        node="a",
        address="127.0.0.1",
        directory=str(directory),
        lease=lease,
    )


class _LateService:
    """An agent that creates a slot, is silent until `late`, and then starts a program in it."""

    def __init__(self) -> None:
        self.late, self.answered, self.warned = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.answers: dict[int, Any] = {}
        self.news: list[messages.News] = []
        self._orders = self._talk()

    async def dial(self) -> Any:
        return self

    async def _talk(self) -> AsyncIterator[messages.Order]:
        replica = ReplicaId(0, 0)
        yield messages.Welcome({})
        yield messages.Allocate(number=1, requests=(SlotRequest(replica, "r0", "a"),))
        await self.late.wait()
        plan = plan_in(Slot(replica, "a", "r0", "r0", "127.0.0.1", 2222), JobUid(1))
        yield messages.Launch(number=2, plans=(plan,), masked=((),), lines=(0,))
        await asyncio.Event().wait()

    async def receive(self) -> messages.Order:
        return await anext(self._orders)

    async def send(self, news: messages.News) -> None:
        if isinstance(news, messages.Answer | messages.Slots):
            self.answers[news.number] = news
            if news.number == 2:
                self.answered.set()
        else:
            self.news.append(news)
            if isinstance(news, messages.Ending):
                self.warned.set()

    def post(self, news: messages.News) -> None:
        pass

    def give_up(self) -> None:
        """Continue: the agent was reachable."""

    def close(self) -> None:
        pass


@pytest.mark.parametrize("when", ["stopped", "released"])
async def test_order_that_an_agent_receives_after_lease_expiry_does_not_fail_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """spec/failures#losses-on-a-cluster: replicas lost with an agent are lost once. The agent reports that
    nothing runs. It must not report a wrong order, which would fail the job, or a failed start, which would
    use up restarts.
    """
    service = _LateService()

    class Engine(LocalEngine):
        async def stop(
            self, job_uid: JobUid, attempt: int, grace: int, notice: StopNotice | None = None
        ) -> None:
            await super().stop(job_uid, attempt, grace, notice)
            if when == "stopped":
                service.late.set()
                await service.answered.wait()

        async def release(self, job_uid: JobUid, attempt: int) -> None:
            await super().release(job_uid, attempt)
            service.late.set()
            await asyncio.gather(service.answered.wait(), service.warned.wait())

    engine = Engine(tmp_path / "own")
    await engine.start()  # Before the start of the lease, which it may exceed.
    monkeypatch.setattr(engine, "start", AsyncMock())
    # Long enough to create a slot on a busy machine.
    document = document_of(tmp_path, "labs-1-1-0/a", 5.0)
    ran = agent.Agent(document, engine, cast("Any", service))
    async with asyncio.timeout(60):
        await ran.run()
    assert isinstance(service.answers[1], messages.Slots), service.answers
    assert service.answers[2].failure == EngineUnavailable.__name__, service.answers
    assert "the agent is ending" in service.answers[2].message
    assert [*map(type, service.news)] == [messages.Hello, messages.Current, messages.Ending]


@pytest.mark.parametrize(("frozen", "grace"), [(0.0, True), (60.0, False)])
async def test_programs_of_an_agent_frozen_past_its_lease_get_no_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: float, grace: bool
) -> None:
    """spec/invariants#one-incarnation: other programs may run in their place by then."""
    service = _LateService()
    offset = 0.0
    monkeypatch.setattr(agent, "_now", lambda: time.monotonic() + offset)
    graces: list[int] = []

    class Engine(LocalEngine):
        async def allocate(
            self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
        ) -> tuple[Slot, ...]:
            nonlocal offset
            slots = await super().allocate(job_uid, attempt, requests)
            offset = frozen
            return slots

        async def stop(
            self, job_uid: JobUid, attempt: int, grace: int, notice: StopNotice | None = None
        ) -> None:
            graces.append(grace)
            await super().stop(job_uid, attempt, grace, notice)

    engine = Engine(tmp_path / "own")
    await engine.start()
    monkeypatch.setattr(engine, "start", AsyncMock())
    ran = agent.Agent(document_of(tmp_path, "labs-1-1-0/a", 5.0), engine, cast("Any", service))
    async with asyncio.timeout(60):
        await ran.run()
    assert ran.is_lease_expired
    assert [bool(seconds) for seconds in graces] == [grace]


@pytest.mark.parametrize("trap", ["link", "open"])
def test_agent_rejects_a_directory_that_another_user_could_have_created(tmp_path: Path, trap: str) -> None:
    place = tmp_path / "trainshed-0"
    if trap == "link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir()
        place.chmod(0o777)
    with pytest.raises(OSError, match="set another directory"):
        agent_process.make_shared_directory(place)
    assert not list(place.iterdir())


def test_leftovers_of_a_killed_agent_are_removed(tmp_path: Path) -> None:
    """Including nested cgroups and the cgroups of its replicas."""
    place, group = tmp_path / "own", tmp_path / "group"
    slot = place / "slots" / "2" / "1" / "workerpool0-0"
    slot.mkdir(parents=True)
    (slot / protocol.JOURNAL).write_text(json.dumps({"groups": [str(group)]}) + "\n")
    group.mkdir()
    here = os.open(place, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("deep", dir_fd=here)
        inner = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    agent_process.remove([place, tmp_path / "gone"])
    assert not list(tmp_path.iterdir())


async def test_agent_reconnects_during_a_long_operation(tmp_path: Path) -> None:
    """A long operation, such as copying an environment to a slow disk, must not cost the lease during a
    network failure.
    """
    dialled, is_asked, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    class Breaking(_LateService):
        async def receive(self) -> messages.Order:
            if is_asked.is_set():
                raise ChannelClosed("cut")
            return await super().receive()

        async def _talk(self) -> AsyncIterator[messages.Order]:
            yield messages.Welcome({})
            yield messages.Allocate(number=1, requests=(SlotRequest(ReplicaId(0, 0), "r0", "a"),))
            await is_asked.wait()
            raise ChannelClosed("cut")

    class Dialer:
        async def dial(self) -> Any:
            if not is_asked.is_set():
                return Breaking()
            dialled.set()
            raise NotAdmitted("not admitted")

    class Engine(LocalEngine):
        async def allocate(
            self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
        ) -> tuple[Slot, ...]:
            is_asked.set()
            await may_end.wait()
            ended.append("allocate")
            return ()

    document = document_of(tmp_path, "hold/a/1", 600.0)
    ran = agent.Agent(document, Engine(tmp_path / "own"), cast("Any", Dialer()))
    running = asyncio.create_task(ran.run())
    try:
        await asyncio.wait_for(dialled.wait(), 60)
    finally:
        may_end.set()
        await asyncio.wait_for(running, 60)
    # It leaves no partial files.
    assert ended == ["allocate"]
