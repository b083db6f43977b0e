"""Wake-ups of readers: none is lost between two reads, and memory use is limited."""

import asyncio

from tests.sim.virtual import under_virtual_time
from trainshed.core.names import JobUid
from trainshed.store.notices import Notices

UID, OTHER = JobUid(1), JobUid(2)


async def test_reader_whose_wake_up_counter_was_discarded_does_not_wait() -> None:
    notices = Notices(limit=2)
    notices.publish(UID)
    seen = notices.count(UID)
    for uid in (UID, OTHER, JobUid(3), JobUid(4)):
        notices.publish(uid)
    assert await notices.wait_beyond(UID, seen, patience=0)


async def test_waiting_log_reader_is_woken_only_by_changes_of_the_awaited_job() -> None:
    notices = Notices()
    seen = notices.count(UID)
    waiting = asyncio.create_task(notices.wait_beyond(UID, seen, patience=60))
    await asyncio.sleep(0)
    notices.publish(OTHER)
    assert not await notices.wait_beyond(UID, notices.count(UID), patience=0)
    assert not waiting.done()
    notices.publish(UID)
    assert await waiting


def test_table_of_wake_up_counters_has_a_limited_size_for_any_number_of_jobs() -> None:
    notices = Notices(limit=10)
    for uid in range(1000):
        seen = notices.count(JobUid(uid))
        notices.publish(JobUid(uid))
        assert notices.count(JobUid(uid)) > seen
        assert len(notices) <= 10


@under_virtual_time
async def test_delayed_wake_ups_are_merged_or_sent_together_with_an_urgent_wake_up() -> None:
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
    # The urgent wake-up already included the delayed one.
    assert not await notices.wait_beyond(UID, seen, patience=0.1)
    assert len(notices) == 1
