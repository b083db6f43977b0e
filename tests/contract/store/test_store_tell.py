"""What requests add to a work's story without changing it."""

from tests.contract.store.store_samples import entry, live_job, make_job, operation, step
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.store.sqlite.database import Store


async def test_a_story_is_told_on_in_any_state(store: Store) -> None:
    """Without touching the job: its generation and etag stay, so that nobody's commit gets stale."""
    job = make_job(7, "j")
    await store.intake.create_job(job, [entry("created")])
    before = await store.reader.job(job.name)
    await store.intake.tell(job.uid, [entry("shell"), entry("shell")])
    assert await store.reader.job(job.name) == before
    live = await store.ledger.load(job.uid)
    assert live is not None
    assert live.generation == 1
    epoch = await store.ledger.acquire("me")
    await store.ledger.commit(epoch, step(live_job(live), JobState.SUCCEEDED, "over"))
    await store.intake.tell(job.uid, [entry("shell")])
    kinds = [event.kind for event in await store.reader.timeline(job.uid)]
    assert kinds == ["created", "shell", "shell", "over", "shell"]
    await store.intake.delete_job(job.name, operation(1))
    await store.intake.tell(job.uid, [entry("shell")])
    assert await store.reader.timeline(JobUid(7)) == ()


async def test_many_stories_are_told_on_at_once(store: Store) -> None:
    """Of those that are there: who was deleted meanwhile keeps nobody else from being told."""
    jobs = [make_job(number, f"j{number}") for number in (1, 2)]
    for job in jobs:
        await store.intake.create_job(job, [entry("created")])
    await store.intake.tell_all([JobUid(1), JobUid(9), JobUid(2)], entry("service_away"))
    for job in jobs:
        kinds = [event.kind for event in await store.reader.timeline(job.uid)]
        assert kinds == ["created", "service_away"]
    assert await store.reader.timeline(JobUid(9)) == ()
