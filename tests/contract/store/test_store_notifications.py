"""The contract of every store for the outbox of notifications (`trainshed.store.sqlite.resources`)."""

import pytest
from msgspec.structs import replace

from tests.contract.store.conftest import Reopen
from tests.contract.store.store_samples import T0, make_job, operation
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.notifications import Notification, Occasion
from trainshed.store.port import Commit, NewWork


def notification_for(target: str) -> Notification:
    return Notification(JobUid(1), target, Occasion.FAILED, T0, '{"type": "job.failed"}')


async def test_notifications_of_a_commit_survive_a_restart_and_the_deletion_of_the_job(
    reopen: Reopen, request: pytest.FixtureRequest
) -> None:
    if "inline" in request.node.name:
        pytest.skip("a store in memory outlives nothing")
    store = reopen()
    await store.intake.create(NewWork(make_job(1)))
    over = replace(make_job(1), state=JobState.FAILED, ended=T0)
    commit = Commit(over, 1, notifications=(notification_for("ops"), notification_for("team")))
    await store.ledger.commit(await store.ledger.acquire("test"), commit)
    await store.intake.delete_job(over.name, operation(1))
    waiting = await reopen().notifications.waiting(10)
    assert [notice.notification for notice in waiting] == [notification_for("ops"), notification_for("team")]
    assert [(notice.due, notice.tries) for notice in waiting] == [(T0, 0), (T0, 0)]
