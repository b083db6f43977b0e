"""What comes in for a job waits for what is sure to follow, and until the job is stored; it is applied,
however long it cannot be stored (spec/reduction)."""

import asyncio
import logging

import pytest

from trainshed.controller import mailboxes
from trainshed.controller.mailboxes import Mailbox, Mailboxes
from trainshed.core.errors import Unavailable
from trainshed.core.lifecycle.events import Event
from trainshed.core.lifecycle.replica_events import ReplicaLost, ReplicaStarted
from trainshed.core.names import JobUid, ReplicaId

UID = JobUid(1)


async def test_of_a_job_that_was_not_stored_nothing_is_taken_in() -> None:
    taken: list[list[Event]] = []

    async def apply(uid: JobUid, mailbox: Mailbox) -> None:
        taken.append(list(mailbox.events))

    subject = Mailboxes(apply)
    subject.hold(UID)
    subject.add(UID, ReplicaStarted(1, ReplicaId(0, 0), 1, 1))
    subject.drop(UID)
    subject.release(UID)
    for _ in range(5):
        await asyncio.sleep(0)
    assert taken == []


async def test_a_full_disk_is_said_once_and_not_with_every_try(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """spec/operations#errors: what the operator is to do, and no stacks of ours; they would fill what is left
    of the disk."""
    monkeypatch.setattr(mailboxes, "_RETRY_INTERVAL", 0.0)
    tries, stored = 0, asyncio.Event()

    async def apply(uid: JobUid, mailbox: Mailbox) -> None:
        nonlocal tries
        tries += 1
        if tries < 5:
            raise Unavailable("the job store could not write: database or disk is full")
        stored.set()

    with caplog.at_level(logging.WARNING):
        Mailboxes(apply).wake(UID)
        await asyncio.wait_for(stored.wait(), 60)
    (record,) = caplog.records
    assert record.getMessage().startswith("job 1: the job store could not write: database or disk")
    assert not record.exc_info


async def test_what_a_whole_gang_tells_is_taken_in_by_parts_and_in_order() -> None:
    """Each event looks at all of a job's replicas: two hundred of them in one step made requests wait."""
    lost = [ReplicaLost(1, ReplicaId(1, index), 1, "gone") for index in range(200)]
    taken: list[list[Event]] = []
    all_taken = asyncio.Event()

    async def apply(uid: JobUid, mailbox: Mailbox) -> None:
        taken.append(mailbox.events)
        if sum(map(len, taken)) == len(lost):
            all_taken.set()

    subject = Mailboxes(apply)
    for event in lost:
        subject.add(UID, event)
    await asyncio.wait_for(all_taken.wait(), 60)
    assert [event for part in taken for event in part] == lost
    assert max(map(len, taken)) <= 50
