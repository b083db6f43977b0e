"""What holds for the store of simulations beyond the contract: hooks at each commit, and no giving way."""

import pytest
from msgspec.structs import replace

from tests.contract.store.store_samples import (
    T0,
    cancel,
    drill,
    entry,
    live_job,
    make_job,
    operation,
    quota_key,
    step,
)
from tests.contract.store.study_samples import (
    child,
    make_resource,
    make_study,
    make_trial,
    make_tuning,
    make_version,
    measured,
    suggesting,
    told,
)
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.states import JobState, OperationState
from trainshed.core.names import JobUid
from trainshed.core.study.records import StudyState, StudyUid
from trainshed.store.port import Commit, NewWork, NodeDrain, StaleCommit
from trainshed.store.sqlite.inline import InlineStore, open_inline
from trainshed.store.studies import StoredTrial


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
    live = live_job(await store.ledger.load(JobUid(1)))
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
async def test_writes_about_jobs_nodes_and_quotas_pass_both_hooks_with_their_names() -> None:
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
    epoch = await store.ledger.acquire("a")
    live = live_job(await store.ledger.load(job.uid))
    await store.ledger.commit(epoch, step(live, JobState.FAILED, consumed=live.intents[-1].seq))
    await store.intake.delete_job(job.name, operation(1))
    await store.intake.create_jobs([NewWork(make_job(2))])
    # A write that is refused comes to no commit.
    with pytest.raises(NotFound):
        await store.intake.request_cancel(job.name, cancel())
    assert before == after
    assert before == [
        *("create_job", "request_cancel", "order_drill", "replace_labels", "drain_node"),
        *("undrain_node", "set_quota", "clear_quota"),
        *("acquire", "commit", "delete_job", "create_jobs"),
    ]


@pytest.mark.anyio
async def test_writes_about_studies_and_models_pass_both_hooks_with_their_names() -> None:
    before: list[str] = []
    after: list[str] = []
    store = open_inline(before.append, after.append)
    study, running, version = make_study(1), suggesting(1, 1), make_version("m", 1, "default")
    resource = make_resource("r")
    await store.studies.create_study(study)
    trial = await store.studies.create_trial(make_trial(1))
    await store.studies.change_trial(trial, 1)
    await store.studies.begin_operation(running)
    await store.studies.finish_operation(replace(running, state=OperationState.SUCCEEDED))
    await store.studies.delete_trial(study.uid, 1)
    await store.studies.set_study_state(study.uid, StudyState.INACTIVE, "")
    await store.studies.delete_study(study.name, T0)
    await store.models.register(version, told(1))
    await store.models.register(make_version("m", 2), told(2))
    await store.models.replace([version])
    await store.models.delete_version(version.name, 2, told(3))
    await store.models.delete_model(version.name, told(4))
    await store.models.create_persistent_resource(resource, told(5))
    await store.models.replace_persistent_resource(resource, told(6))
    await store.models.delete_persistent_resource(resource.name, told(7))
    assert before == after
    assert before == [
        *("create_study", "create_trial", "change_trial", "begin_operation", "finish_operation"),
        *("delete_trial", "set_study_state", "delete_study", "register", "register", "replace"),
        *("delete_version", "delete_model", "create_persistent_resource"),
        *("replace_persistent_resource", "delete_persistent_resource"),
    ]


@pytest.mark.anyio
async def test_a_step_with_its_trials_jobs_and_model_is_one() -> None:
    """spec/invariants#durability: a crash before the commit leaves nothing of a step, one after it all of
    it."""
    store = open_inline()
    tuning, model = make_tuning(1), make_version("m", 1, "default")
    await store.intake.create_job(tuning, [])
    epoch = await store.ledger.acquire("a")
    commit = Commit(
        replace(tuning, next_trial=2),
        1,
        trials=(make_trial(1, 1),),
        measurements=((1, measured(1, 0.5)),),
        made=(NewWork(child(tuning, 2, 1)),),
        model=model,
    )

    async def stored() -> list[int]:
        try:
            models = 1 if await store.models.version(model.name, "") else 0
        except NotFound:
            models = 0
        return [
            len(await store.studies.history([tuning.study])),
            len(await store.studies.measurements(tuning.study)),
            len(await store.reader.children(tuning.uid)),
            models,
        ]

    store.before_commit = crash
    with pytest.raises(Crash, match="commit"):
        await store.ledger.commit(epoch, commit)
    assert await stored() == [0, 0, 0, 0]
    store.before_commit, store.after_commit = None, crash
    with pytest.raises(Crash, match="commit"):
        await store.ledger.commit(epoch, commit)
    store.after_commit = None
    assert await stored() == [1, 1, 1, 1]
    with pytest.raises(StaleCommit):
        await store.ledger.commit(epoch, commit)


@pytest.mark.anyio
async def test_a_crash_gives_a_client_all_of_its_trials_or_none() -> None:
    """spec/tuning#reproducible: after a restart a study goes on as if nothing had happened."""
    store = open_inline()
    await store.studies.create_study(make_study(1))
    pending = await store.studies.create_trial(make_trial(1))
    running = suggesting(1, 1)
    await store.studies.begin_operation(running)
    finished = replace(running, state=OperationState.SUCCEEDED)
    assigned = [StoredTrial(replace(pending, client="c"), 1)]
    store.before_commit = crash
    with pytest.raises(Crash):
        await store.studies.finish_operation(finished, assigned=assigned, suggested=[make_trial(1)])
    store.before_commit = None
    assert await store.studies.running_operations() == (running,)
    assert await store.studies.history([StudyUid(1)]) == (pending,)
    store.after_commit = crash
    with pytest.raises(Crash):
        await store.studies.finish_operation(finished, assigned=assigned, suggested=[make_trial(1)])
    store.after_commit = None
    assert (await store.reader.operation(running.name)).trials == (1, 2)
    assert [trial.client for trial in await store.studies.history([StudyUid(1)])] == ["c", ""]


def test_no_call_gives_way() -> None:
    """A call ends in the step in which it begins: no event loop is needed, real or virtual."""

    async def through_every_door(store: InlineStore) -> int:
        await store.intake.create_job(make_job(1), [])
        await store.ledger.load_live()
        return (await store.reader.find("job1"))[0].uid

    with pytest.raises(StopIteration) as end:
        through_every_door(open_inline()).send(None)
    assert end.value.value == 1
