"""The contract of every store (`trainshed.store.port`, spec/invariants). Requests can extend the
timeline of a job without changing the job."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.contract.store.store_samples import (
    SECOND,
    T0,
    cancel,
    drill,
    entry,
    in_state,
    live_job,
    make_job,
    operation,
    step,
)
from trainshed.core.errors import AlreadyExists, FailedPrecondition, NotFound, Unavailable
from trainshed.core.lifecycle.events import DrillOrdered
from trainshed.core.lifecycle.records import DrillKind, Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Collection, JobUid
from trainshed.store.port import Commit, LiveJob, NewWork, StaleCommit
from trainshed.store.sqlite.database import Store


async def create_job(store: Store, job: Job) -> Job:
    await store.intake.create(NewWork(job, (entry("created"),)))
    return job


async def load_job(store: Store, uid: int) -> LiveJob[Job]:
    return live_job(await store.ledger.load(JobUid(uid)))


async def finish_job(store: Store, job: Job, state: JobState = JobState.SUCCEEDED) -> None:
    epoch = await store.ledger.acquire("test")
    await store.ledger.commit(epoch, step(await load_job(store, job.uid), state, "ended"))


async def test_job_with_a_numeric_id_is_found_by_its_full_name(store: Store) -> None:
    job = await create_job(store, make_job(7, "7"))
    assert (await store.reader.job(job.name))[0] == job
    assert (await store.reader.find("7"))[0] == job
    for elsewhere in (
        replace(job.name, project_id="other"),
        replace(job.name, location="europe-west4"),
        replace(job.name, job_id="07"),
        replace(job.name, job_id="\u0667"),  # This is a Unicode digit, but not an ASCII one.
        replace(job.name, job_id="7" * 30),
        replace(job.name, collection=Collection.TUNING_JOBS),
    ):
        with pytest.raises(NotFound):
            await store.reader.job(elsewhere)
        with pytest.raises(NotFound):
            await store.intake.request_cancel(elsewhere, cancel())
    assert await store.intake.request_cancel(job.name, cancel()) == job.uid
    with pytest.raises(AlreadyExists):
        await store.intake.create(NewWork(job))


async def test_drills_are_stored_in_addition_to_a_cancel(store: Store) -> None:
    """spec/operations#drills: every requested drill is carried out, and several cancels count as one."""
    job = await create_job(store, make_job(1))
    first, second = drill(DrillKind.KILL), drill(DrillKind.SEGV, "^step 3$")
    assert await store.intake.order_drill(job.name, first) == job.uid
    await store.intake.request_cancel(job.name, cancel(T0 + 1))
    await store.intake.order_drill(job.name, second)
    await store.intake.order_drill(job.name, second)
    await store.intake.request_cancel(job.name, cancel(T0 + 2))
    live = await load_job(store, 1)
    expected = [DrillOrdered(first), cancel(T0 + 1), DrillOrdered(second), DrillOrdered(second)]
    assert [intent.event for intent in live.intents] == expected
    assert await store.ledger.load_live() == (live,)
    epoch = await store.ledger.acquire("a")
    await store.ledger.commit(epoch, step(live, JobState.RUNNING, consumed=live.intents[2].seq))
    assert (await load_job(store, 1)).intents == live.intents[3:]


async def unchanged_after(store: Store, epoch: int, commit: Commit) -> None:
    """Commit a stale `commit`, and check that nothing of it is stored."""
    uid = commit.job.uid
    before = await store.reader.job_by_uid(uid), await store.reader.timeline(uid)
    intents = await store.ledger.load(uid)
    with pytest.raises(StaleCommit):
        await store.ledger.commit(epoch, commit)
    assert (await store.reader.job_by_uid(uid), await store.reader.timeline(uid)) == before
    assert await store.ledger.load(uid) == intents


async def test_commit_with_a_stale_generation_writes_nothing(store: Store) -> None:
    """spec/invariants#guarded-writes."""
    await create_job(store, make_job(1))
    epoch = await store.ledger.acquire("a")
    old = await load_job(store, 1)
    await store.ledger.commit(epoch, step(old, JobState.PREPARING))
    await unchanged_after(store, epoch, step(old, JobState.RUNNING, "too late", consumed=99))


async def test_commit_of_a_former_leader_writes_nothing(store: Store) -> None:
    """spec/invariants#guarded-writes: the leadership epoch is part of the guard."""
    await create_job(store, make_job(1))
    former = await store.ledger.acquire("a")
    leader = await store.ledger.acquire("b")
    assert leader > former
    live = await load_job(store, 1)
    await unchanged_after(store, former, step(live, JobState.RUNNING, "ghost"))
    await store.ledger.commit(leader, step(live, JobState.RUNNING))


async def test_final_state_of_a_job_cannot_change(store: Store) -> None:
    await create_job(store, make_job(1))
    epoch = await store.ledger.acquire("a")
    live = await load_job(store, 1)
    generation = await store.ledger.commit(epoch, step(live, JobState.FAILED))
    over = LiveJob(in_state(live.job, JobState.FAILED), generation)
    for state in (JobState.RUNNING, JobState.SUCCEEDED):
        await unchanged_after(store, epoch, step(over, state))
    assert await store.ledger.commit(epoch, step(over, JobState.FAILED, "told")) == generation + 1


async def test_intent_added_between_load_and_commit_is_kept(store: Store) -> None:
    """spec/invariants#durability: an acknowledged intent is not lost."""
    job = await create_job(store, make_job(1))
    epoch = await store.ledger.acquire("a")
    live = await load_job(store, 1)
    await store.intake.request_cancel(job.name, cancel())
    await store.ledger.commit(epoch, step(live, JobState.PREPARING))
    waiting = await load_job(store, 1)
    assert [intent.event for intent in waiting.intents] == [cancel()]
    consumed = waiting.intents[-1].seq
    await store.ledger.commit(epoch, step(waiting, JobState.CANCELLING, consumed=consumed))
    assert (await load_job(store, 1)).intents == ()
    await store.intake.request_cancel(job.name, cancel(T0 + 9))
    (again,) = (await load_job(store, 1)).intents
    assert again.seq > consumed


async def test_job_cannot_end_with_an_unconsumed_intent(store: Store) -> None:
    """spec/lifecycle#cancel: a cancel is never lost."""
    job = await create_job(store, make_job(1))
    epoch = await store.ledger.acquire("a")
    live = await load_job(store, 1)
    await store.intake.request_cancel(job.name, cancel())
    await unchanged_after(store, epoch, step(live, JobState.FAILED, "ended"))
    (intent,) = (await load_job(store, 1)).intents
    await store.ledger.commit(epoch, step(live, JobState.CANCELLED, consumed=intent.seq))
    assert (await store.reader.job(job.name))[0].state is JobState.CANCELLED


async def test_label_changes_and_state_changes_of_a_job_are_all_kept(store: Store) -> None:
    job = await create_job(store, make_job(1, labels=(("a", "1"),)))
    epoch = await store.ledger.acquire("a")
    live = await load_job(store, 1)
    changed = await store.intake.replace_labels(job.name, (("b", "2"),), "", T0 + SECOND)
    assert changed == replace(job, labels=(("b", "2"),), updated=T0 + SECOND)
    await store.ledger.commit(epoch, Commit(in_state(live.job, JobState.RUNNING, T0 + 5), live.generation))
    now, _ = await store.reader.job(job.name)
    assert (now.state, now.labels, now.updated) == (JobState.RUNNING, (("b", "2"),), T0 + SECOND)
    assert (await load_job(store, 1)).job == now
    await finish_job(store, job)
    over = await store.intake.replace_labels(job.name, (), "", T0)
    assert (over.state, over.labels) == (JobState.SUCCEEDED, ())


async def test_delete_with_an_existing_operation_name_is_rolled_back(store: Store) -> None:
    for uid in (1, 2):
        await finish_job(store, await create_job(store, make_job(uid)))
    await store.intake.delete_job(make_job(1).name, operation(1))
    with pytest.raises(Unavailable):
        await store.intake.delete_job(make_job(2).name, operation(1))
    assert await store.reader.timeline(JobUid(2)) != ()
    assert (await store.reader.job(make_job(2).name))[0].uid == 2


async def test_failing_command_does_not_affect_other_commands_of_its_transaction(store: Store) -> None:
    """spec/invariants#guarded-writes: a failed guard rolls back only its own command."""
    await create_job(store, make_job(1))
    results = await asyncio.gather(
        *(store.intake.create(NewWork(make_job(uid), (entry("created"),))) for uid in range(2, 40)),
        store.intake.create(NewWork(make_job(99, "job1"))),
        store.intake.create(NewWork(make_job(1, "other"))),
        store.intake.delete_job(make_job(1).name, operation(1)),
        store.intake.create(NewWork(make_job(40), (entry("created"),))),
        return_exceptions=True,
    )
    expected = [AlreadyExists, Unavailable, FailedPrecondition, type(None)]
    assert [type(result) for result in results[38:]] == expected
    assert set(results[:38]) == {None}
    assert [work.job.uid for work in await store.ledger.load_live()] == list(range(1, 41))
    await create_job(store, make_job(41, "other"))


async def test_only_the_leader_stores_a_new_job_that_has_already_started(store: Store) -> None:
    former = await store.ledger.acquire("a")
    epoch = await store.ledger.acquire("b")
    job = replace(make_job(1), state=JobState.PREPARING)
    made = NewWork(job, (entry("created"), entry("admitted")))
    with pytest.raises(StaleCommit, match=rf"a newer controller has replaced this one \(epoch {former}\)"):
        await store.ledger.create_admitted(former, made)
    await store.ledger.create_admitted(epoch, made)
    live = await load_job(store, 1)
    assert (live.job, live.generation) == (job, 1)
    kinds = [entry.kind for entry in await store.reader.timeline(JobUid(1))]
    assert kinds == ["created", "admitted"]
    with pytest.raises(AlreadyExists):
        await store.ledger.create_admitted(epoch, NewWork(replace(job, uid=JobUid(2))))
    assert await store.ledger.commit(epoch, step(live, JobState.RUNNING, "running")) == 2


async def test_cancelled_caller_does_not_affect_other_callers(store: Store) -> None:
    gone = asyncio.ensure_future(store.intake.create(NewWork(make_job(1))))
    stays = asyncio.ensure_future(store.intake.create(NewWork(make_job(2))))
    await asyncio.sleep(0)
    gone.cancel()
    await stays
    assert (await store.reader.job_by_uid(JobUid(2)))[0].uid == 2


async def test_closed_store_raises_unavailable(store: Store) -> None:
    store.close()
    store.close()
    for call in (store.intake.create(NewWork(make_job(1))), store.reader.find("x")):
        with pytest.raises(Unavailable):
            await call


async def test_timeline_entry_can_be_added_in_every_state(store: Store) -> None:
    """The job itself does not change: its generation and etag stay, so that no commit becomes stale."""
    job = make_job(7, "j")
    await store.intake.create(NewWork(job, (entry("created"),)))
    before = await store.reader.job(job.name)
    for _ in range(2):
        await store.intake.add_timeline_entry([job.uid], entry("shell"))
    assert await store.reader.job(job.name) == before
    live = await store.ledger.load(job.uid)
    assert live is not None and live.generation == 1
    epoch = await store.ledger.acquire("me")
    await store.ledger.commit(epoch, step(live_job(live), JobState.SUCCEEDED, "over"))
    await store.intake.add_timeline_entry([job.uid], entry("shell"))
    kinds = [event.kind for event in await store.reader.timeline(job.uid)]
    assert kinds == ["created", "shell", "shell", "over", "shell"]
    await store.intake.delete_job(job.name, operation(1))
    await store.intake.add_timeline_entry([job.uid], entry("shell"))
    assert await store.reader.timeline(JobUid(7)) == ()


async def test_timeline_entry_is_added_to_several_jobs_at_once(store: Store) -> None:
    """If one of the jobs was deleted in the meantime, the other jobs still get the entry."""
    jobs = [make_job(number, f"j{number}") for number in (1, 2)]
    for job in jobs:
        await store.intake.create(NewWork(job, (entry("created"),)))
    await store.intake.add_timeline_entry([JobUid(1), JobUid(9), JobUid(2)], entry("service_away"))
    for job in jobs:
        kinds = [event.kind for event in await store.reader.timeline(job.uid)]
        assert kinds == ["created", "service_away"]
    assert await store.reader.timeline(JobUid(9)) == ()
