"""What every store promises of the outbox (`trainshed.store.sqlite.resources`)."""

import pytest
from msgspec.structs import replace

from tests.contract.store.conftest import Reopen
from tests.contract.store.store_samples import T0, make_job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.notifications import Notification, Occasion
from trainshed.store.port import Commit
from trainshed.store.sqlite.database import Store


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
