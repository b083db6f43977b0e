"""What comes in for a job waits for what is sure to follow, and until the job is stored."""

import asyncio

from trainshed.controller.controller import Mailbox, Mailboxes
from trainshed.core.lifecycle.events import Event, PauseOver
from trainshed.core.lifecycle.replica_events import ReplicaStarted
from trainshed.core.names import JobUid, ReplicaId

UID = JobUid(1)
FIRST, SECOND = (ReplicaStarted(1, ReplicaId(0, number), 1, 1) for number in (0, 1))


class Taken:
    """What mailboxes hand on, of which so many are `expected` together."""

    def __init__(self, expected: int = 0) -> None:
        self.events: list[list[Event]] = []
        self.some = asyncio.Event()
        self.mailboxes = Mailboxes(self._apply, lambda _, __: expected)

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
