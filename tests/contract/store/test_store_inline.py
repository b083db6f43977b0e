"""What holds for the store of simulations beyond the contract: hooks at each commit, and no giving way."""

import pytest

from tests.contract.store.store_samples import (
    cancel,
    drill,
    drill_plan,
    entry,
    make_job,
    operation,
    quota_key,
    step,
)
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.store.port import NodeDrain
from trainshed.store.sqlite.inline import InlineStore, open_inline


class Crash(BaseException):
    """The process is gone."""


def crash(what: str) -> None:
    raise Crash(what)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_a_crash_before_a_commit_stores_nothing() -> None:
    store = open_inline()
    store.before_commit = crash
    with pytest.raises(Crash, match="create_job"):
        await store.intake.create_job(make_job(1), [entry("created")])
    store.before_commit = None
    with pytest.raises(NotFound):
        await store.reader.job_by_uid(JobUid(1))
    assert await store.reader.timeline(JobUid(1)) == ()
    await store.intake.create_job(make_job(1), [entry("created")])
    live = await store.ledger.load(JobUid(1))
    assert live
    epoch = await store.ledger.acquire("a")
    store.before_commit = crash
    with pytest.raises(Crash, match="commit"):
        await store.ledger.commit(epoch, step(live, JobState.RUNNING, "running"))
    store.before_commit = None
    assert await store.ledger.load(JobUid(1)) == live
    assert await store.ledger.commit(epoch, step(live, JobState.RUNNING)) == 2


@pytest.mark.anyio
async def test_a_crash_after_a_commit_keeps_what_nobody_was_told() -> None:
    store = open_inline()
    store.after_commit = crash
    with pytest.raises(Crash, match="create_job"):
        await store.intake.create_job(make_job(1), [entry("created")])
    store.after_commit = None
    assert (await store.reader.job_by_uid(JobUid(1)))[0] == make_job(1)
    assert await store.reader.timeline(JobUid(1)) == (entry("created"),)


@pytest.mark.anyio
async def test_every_write_passes_both_hooks_with_its_name() -> None:
    before: list[str] = []
    after: list[str] = []
    store = open_inline(before.append, after.append)
    job = make_job(1)
    await store.intake.create_job(job, [])
    await store.intake.request_cancel(job.name, cancel())
    await store.intake.order_drill(job.name, drill())
    await store.intake.replace_labels(job.name, (), "", 1)
    await store.intake.drain_node(NodeDrain("n", 1))
    await store.intake.undrain_node("n")
    await store.intake.set_quota(quota_key(), 1)
    await store.intake.clear_quota(quota_key())
    await store.intake.put_drill_plan(drill_plan())
    await store.intake.delete_drill_plan("p", "plan")
    epoch = await store.ledger.acquire("a")
    live = await store.ledger.load(job.uid)
    assert live
    await store.ledger.commit(epoch, step(live, JobState.FAILED, consumed=live.intents[-1].seq))
    await store.intake.delete_job(job.name, operation(1))
    # A write that is refused comes to no commit.
    with pytest.raises(NotFound):
        await store.intake.request_cancel(job.name, cancel())
    assert before == after
    assert before == [
        *("create_job", "request_cancel", "order_drill", "replace_labels", "drain_node"),
        *("undrain_node", "set_quota", "clear_quota", "put_drill_plan", "delete_drill_plan"),
        *("acquire", "commit", "delete_job"),
    ]


def test_no_call_gives_way() -> None:
    """A call ends in the step in which it begins: no event loop is needed, real or virtual."""

    async def through_every_door(store: InlineStore) -> int:
        await store.intake.create_job(make_job(1), [])
        await store.ledger.load_live()
        return (await store.reader.find("job1"))[0].uid

    with pytest.raises(StopIteration) as end:
        through_every_door(open_inline()).send(None)
    assert end.value.value == 1
