"""What came in for a job is applied, however long it cannot be stored (SPEC §7)."""

import asyncio
import logging

import pytest

from trainshed.controller import inboxes
from trainshed.controller.inboxes import Inbox, Inboxes
from trainshed.core.errors import Unavailable
from trainshed.core.names import JobUid

pytestmark = pytest.mark.anyio


async def test_a_full_disk_is_said_once_and_not_with_every_try(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC §8: what the operator is to do, and no stacks of ours; they would fill what is left of the disk."""
    monkeypatch.setattr(inboxes, "_PAUSE", 0.0)
    tries, stored = 0, asyncio.Event()

    async def apply(uid: JobUid, inbox: Inbox) -> None:
        nonlocal tries
        tries += 1
        if tries < 5:
            raise Unavailable("the job store could not write: database or disk is full")
        stored.set()

    with caplog.at_level(logging.WARNING):
        Inboxes(apply, lambda uid, inbox: False).look(JobUid(7))
        await asyncio.wait_for(stored.wait(), 10)
    (record,) = caplog.records
    assert record.getMessage().startswith("job 7: the job store could not write: database or disk")
    assert not record.exc_info
