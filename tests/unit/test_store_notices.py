"""Wake-ups: none is lost to a reader that looks away, and little is kept of jobs."""

import asyncio

from tests.sim.virtual import under_virtual_time
from trainshed.core.names import JobUid
from trainshed.store.notices import Notices

UID, OTHER = JobUid(1), JobUid(2)


async def test_news_that_was_forgotten_meanwhile_is_not_waited_for() -> None:
    notices = Notices(limit=2)
    notices.publish(UID)
    seen = notices.count(UID)
    for uid in (UID, OTHER, JobUid(3), JobUid(4)):
        notices.publish(uid)
    assert await notices.wait_beyond(UID, seen, patience=0)


async def test_a_waiter_is_woken_by_the_next_news_of_its_job_alone() -> None:
    notices = Notices()
    seen = notices.count(UID)
    waiting = asyncio.create_task(notices.wait_beyond(UID, seen, patience=60))
    await asyncio.sleep(0)
    notices.publish(OTHER)
    assert not await notices.wait_beyond(UID, notices.count(UID), patience=0)
    assert not waiting.done()
    notices.publish(UID)
    assert await waiting


def test_jobs_take_a_bounded_room() -> None:
    notices = Notices(limit=10)
    for uid in range(1000):
        seen = notices.count(JobUid(uid))
        notices.publish(JobUid(uid))
        assert notices.count(JobUid(uid)) > seen
        assert len(notices) <= 10


@under_virtual_time
async def test_news_that_can_wait_is_told_once_soon_or_with_what_cannot() -> None:
    notices = Notices()
    seen = notices.count(UID)
    notices.publish_soon(UID)
    notices.publish_soon(UID)
    assert notices.count(UID) == seen
    assert await notices.wait_beyond(UID, seen, patience=60)
    seen = notices.count(UID)
    notices.publish_soon(UID)
    notices.publish(UID)
    seen = notices.count(UID)
    # What was about to be told was told with the other.
    assert not await notices.wait_beyond(UID, seen, patience=0.1)
    assert len(notices) == 1
