"""Slots of a large gang are given out while others have their turn on the loop, and none twice."""

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local.gangs import Gangs
from trainshed.engines.local.layout import Layout
from trainshed.engines.local.nodes import Nodes
from trainshed.engines.port import EngineUnavailable, SlotRequest

NODE = "local"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path)
    made.make()
    return made


@pytest.fixture
def gangs(layout: Layout) -> Gangs:
    nodes = Nodes(lambda _: None)
    nodes.begin([NODE])
    made = Gangs(layout, nodes, "service", lambda _: None, lambda _: None)
    made.begin({}, named=True, own_users=True)
    return made


def requests(count: int) -> list[SlotRequest]:
    return [SlotRequest(ReplicaId(1, index), f"r{index}", NODE) for index in range(count)]


def most_in_a_turn(gangs: Gangs, job: JobUid, count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many directories are made at most while nobody else has a turn on the loop."""
    turn = 0
    made = Counter[int]()
    make = os.mkdir

    def counting(*arguments: Any, **options: Any) -> None:
        made[turn] += 1
        make(*arguments, **options)

    async def story() -> None:
        nonlocal turn
        allocating = asyncio.ensure_future(gangs.allocate(job, 1, requests(count)))
        while not allocating.done():
            turn += 1
            await asyncio.sleep(0)
        assert len(await allocating) == count

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", counting)
        asyncio.run(story())
    assert made.total() >= count
    return max(made.values())


def test_a_turn_of_the_loop_does_not_grow_with_the_gang(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = (most_in_a_turn(gangs, JobUid(count), count, monkeypatch) for count in (20, 200))
    assert small == large < 20


def test_who_comes_meanwhile_is_given_other_slots(gangs: Gangs) -> None:
    async def story() -> None:
        jobs = [JobUid(1), JobUid(2), JobUid(1)]
        first, other, again = await asyncio.gather(
            *(gangs.allocate(job, 1, requests(40)) for job in jobs)
        )
        assert first == again
        for given in ("address", "users"):
            assert len({getattr(slot, given) for slot in (*first, *other)}) == 80

    asyncio.run(story())


def test_slots_that_cannot_be_written_down_are_not_given_out(gangs: Gangs, layout: Layout) -> None:
    async def story() -> None:
        (layout.slots / "1").touch()  # In the way of the job's directory.
        with pytest.raises(EngineUnavailable, match="cannot be written down"):
            await gangs.allocate(JobUid(1), 1, requests(1))
        assert not gangs.names()
        (layout.slots / "1").unlink()
        assert len(await gangs.allocate(JobUid(1), 1, requests(1))) == 1

    asyncio.run(story())
