"""Tests of the mailboxes for job events: batches, unstored jobs, and jobs that cannot be stored
(spec/reduction)."""

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


async def test_events_of_a_job_that_was_never_stored_are_not_applied() -> None:
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


async def test_full_disk_is_logged_once_for_all_retries_of_a_job_update(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """spec/operations#errors: The log line contains a remedy and no stack trace, which would use up the
    remaining space."""
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


async def test_events_of_a_large_gang_are_applied_in_batches() -> None:
    """Each event reads all of a job's replicas. Two hundred events in one step would delay requests."""
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
