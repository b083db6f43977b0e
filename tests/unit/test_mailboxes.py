"""What comes in for a job waits for what is sure to follow, and until the job is stored; it is applied,
however long it cannot be stored (spec/reduction)."""

import asyncio
import logging

import pytest

from tests.sim import virtual
from tests.sim.engine.clock import Clock
from trainshed.controller import mailboxes
from trainshed.controller.mailboxes import Mailbox, Mailboxes
from trainshed.core.errors import Unavailable
from trainshed.core.lifecycle.events import Event, PauseOver
from trainshed.core.lifecycle.replica_events import ReplicaLost, ReplicaStarted
from trainshed.core.names import JobUid, ReplicaId

UID = JobUid(1)
FIRST, SECOND = (ReplicaStarted(1, ReplicaId(0, number), 1, 1) for number in (0, 1))


def replicas(count: int) -> set[ReplicaId]:
    """So many of the pool of `FIRST` and `SECOND`."""
    return {ReplicaId(0, number) for number in range(count)}


class Taken:
    """What mailboxes hand on, of which so many are `expected` together."""

    def __init__(self, expected: int = 0) -> None:
        self.events: list[list[Event]] = []
        self.some = asyncio.Event()
        self.mailboxes = Mailboxes(self._apply, lambda _, __: replicas(expected))

    async def _apply(self, uid: JobUid, mailbox: Mailbox) -> None:
        self.events.append(list(mailbox.events))
        self.some.set()

    async def nothing_yet(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        assert self.events == []


async def _in_time(taken: Taken) -> list[list[Event]]:
    async with asyncio.timeout(10):
        await taken.some.wait()
    return taken.events


def test_what_belongs_together_is_taken_in_as_soon_as_the_last_of_it_is_there() -> None:
    async def story() -> None:
        taken = Taken(expected=2)
        taken.mailboxes.add(UID, FIRST)
        await taken.nothing_yet()
        taken.mailboxes.add(UID, SECOND)
        assert await _in_time(taken) == [[FIRST, SECOND]]

    asyncio.run(story())


def test_what_is_told_twice_stands_for_nobody_else() -> None:
    """Who is stopped and over already says so once more: the end of a second one is still waited for."""

    async def story() -> None:
        taken = Taken(expected=2)
        taken.mailboxes.add(UID, FIRST)
        await taken.nothing_yet()
        taken.mailboxes.add(UID, FIRST)
        taken.mailboxes.add(UID, ReplicaStarted(1, ReplicaId(1, 0), 1, 1))
        await taken.nothing_yet()
        taken.mailboxes.add(UID, SECOND)
        (events,) = await _in_time(taken)
        assert len(events) == 4

    asyncio.run(story())


def test_something_else_is_not_kept_waiting() -> None:
    async def story() -> None:
        taken = Taken(expected=3)
        taken.mailboxes.add(UID, FIRST)
        await taken.nothing_yet()
        taken.mailboxes.add(UID, PauseOver(1))
        assert await _in_time(taken) == [[FIRST, PauseOver(1)]]

    asyncio.run(story())


def test_what_never_becomes_complete_is_taken_in_after_a_moment() -> None:
    async def story() -> None:
        taken = Taken(expected=2)
        taken.mailboxes.add(UID, FIRST)
        assert await _in_time(taken) == [[FIRST]]

    asyncio.run(story())


def test_what_comes_in_while_a_job_is_stored_waits_for_that() -> None:
    async def story() -> None:
        taken = Taken()
        taken.mailboxes.hold(UID)
        taken.mailboxes.add(UID, FIRST)
        await taken.nothing_yet()
        taken.mailboxes.release(UID)
        assert await _in_time(taken) == [[FIRST]]

    asyncio.run(story())


def test_of_a_job_that_was_not_stored_nothing_is_taken_in() -> None:
    async def story() -> None:
        taken = Taken()
        taken.mailboxes.hold(UID)
        taken.mailboxes.add(UID, FIRST)
        taken.mailboxes.drop(UID)
        taken.mailboxes.release(UID)
        await taken.nothing_yet()

    asyncio.run(story())


@pytest.mark.anyio
async def test_a_full_disk_is_said_once_and_not_with_every_try(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """spec/operations#errors: what the operator is to do, and no stacks of ours; they would fill what is left
    of the disk."""
    monkeypatch.setattr(mailboxes, "_PAUSE", 0.0)
    tries, stored = 0, asyncio.Event()

    async def apply(uid: JobUid, mailbox: Mailbox) -> None:
        nonlocal tries
        tries += 1
        if tries < 5:
            raise Unavailable("the job store could not write: database or disk is full")
        stored.set()

    with caplog.at_level(logging.WARNING):
        Mailboxes(apply, lambda uid, mailbox: set()).wake(JobUid(7))
        await asyncio.wait_for(stored.wait(), 10)
    (record,) = caplog.records
    assert record.getMessage().startswith("job 7: the job store could not write: database or disk")
    assert not record.exc_info


@pytest.mark.anyio
async def test_what_a_whole_gang_tells_is_taken_in_by_parts_and_in_order() -> None:
    """Each event looks at all of a job's replicas: two hundred of them in one step made requests wait."""
    told = [ReplicaLost(1, ReplicaId(1, index), 1, "gone") for index in range(200)]
    taken: list[list[Event]] = []
    all_taken = asyncio.Event()

    async def apply(uid: JobUid, mailbox: Mailbox) -> None:
        taken.append(mailbox.events)
        if sum(map(len, taken)) == len(told):
            all_taken.set()

    subject = Mailboxes(apply, lambda uid, mailbox: set())
    for event in told:
        subject.add(JobUid(7), event)
    await asyncio.wait_for(all_taken.wait(), 10)
    assert [event for part in taken for event in part] == told
    assert max(map(len, taken)) <= 50


@pytest.mark.parametrize(
    ("expected", "taken"),
    [
        pytest.param(3, [(0.024, 3)], id="all have come"),
        pytest.param(4, [(0.05, 3)], id="one is late"),
    ],
)
def test_the_starts_of_a_gang_are_taken_in_together(
    expected: int, taken: list[tuple[float, int]]
) -> None:
    """Each taking in is a commit, and competes with the programs that are starting."""
    found: list[tuple[float, int]] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()

        async def apply(uid: JobUid, mailbox: Mailbox) -> None:
            found.append((round(loop.time() - begin, 3), len(mailbox.events)))

        subject = Mailboxes(apply, lambda uid, mailbox: replicas(expected))
        for index in range(3):
            subject.add(JobUid(7), ReplicaLost(1, ReplicaId(0, index), 1, "gone"))
            await asyncio.sleep(0.012)
        await asyncio.gather(*subject.close())

    virtual.run(Clock(0), story(), [])
    assert found == taken
