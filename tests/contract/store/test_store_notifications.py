"""What every store promises of the outbox (`trainshed.store.resources`)."""

import pytest
from msgspec.structs import replace

from tests.contract.store.conftest import Reopen
from tests.contract.store.store_samples import SECOND, T0, make_job, operation
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.notifications import Notification, Occasion
from trainshed.store.port import Commit, StaleCommit, Store

pytestmark = pytest.mark.anyio


def told(target: str, uid: int = 1, at: int = T0) -> Notification:
    return Notification(JobUid(uid), target, Occasion.FAILED, at, '{"type": "job.failed"}')


async def end(store: Store, *notifications: Notification, uid: int = 1) -> None:
    """Commit the end of a job with what it tells."""
    epoch = await store.ledger.acquire("test")
    live = await store.ledger.load(JobUid(uid))
    assert live is not None
    over = replace(live.job, state=JobState.FAILED, ended=T0)
    await store.ledger.commit(
        epoch,
        Commit(over, live.generation, notifications=notifications),  # pyright: ignore[reportArgumentType] # one of the kinds
    )


async def test_what_a_commit_tells_is_stored_with_it_and_outlives_the_service(
    reopen: Reopen, request: pytest.FixtureRequest
) -> None:
    if "inline" in request.node.name:
        pytest.skip("a store in memory outlives nothing")
    store = reopen()
    await store.intake.create_job(make_job(1), ())
    await end(store, told("ops"), told("team"))
    waiting = await reopen().notifications.waiting(10)
    assert [notice.notification for notice in waiting] == [told("ops"), told("team")]
    assert [(notice.due, notice.tries) for notice in waiting] == [(T0, 0), (T0, 0)]


async def test_a_commit_that_is_refused_tells_nobody(store: Store) -> None:
    await store.intake.create_job(make_job(1), ())
    epoch = await store.ledger.acquire("test")
    with pytest.raises(StaleCommit):
        await store.ledger.commit(epoch, Commit(make_job(1), 7, notifications=(told("ops"),)))
    assert await store.notifications.count() == (0, 0)


async def test_what_is_due_first_comes_first(store: Store) -> None:
    await store.intake.create_job(make_job(1), ())
    await end(store, told("a"), told("b", at=T0 - SECOND), told("c"))
    b, a, c = await store.notifications.waiting(10)
    assert [notice.notification.target for notice in (a, b, c)] == ["a", "b", "c"]
    await store.notifications.put_off(b.id, T0 + SECOND)
    await store.notifications.remove(c.id)
    await store.notifications.remove(c.id)
    left = await store.notifications.waiting(10)
    assert [(notice.id, notice.due, notice.tries) for notice in left] == [
        (a.id, T0, 0),
        (b.id, T0 + SECOND, 1),
    ]
    assert await store.notifications.count() == (2, 1)
    assert await store.notifications.waiting(1) == left[:1]


async def test_a_job_that_is_deleted_is_told_of_no_more(store: Store) -> None:
    for uid in (1, 2):
        await store.intake.create_job(make_job(uid), ())
        await end(store, told("ops", uid), uid=uid)
    await store.intake.delete_job(make_job(1).name, operation(1))
    (left,) = await store.notifications.waiting(10)
    assert left.notification.job_uid == 2
