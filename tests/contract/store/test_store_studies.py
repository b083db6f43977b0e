"""The contract of every store for studies, trials and operations (`trainshed.store.sqlite.studies`,
spec/tuning#studies)."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.contract.store.store_samples import T0
from tests.contract.store.study_samples import make_study, make_trial, measurement, suggesting
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.study.records import StudyUid, Trial
from trainshed.store.port import StaleCommit
from trainshed.store.records import Operation
from trainshed.store.sqlite.database import Store

ONE = StudyUid(1)


async def with_trials(store: Store, count: int, uid: int = 1) -> list[Trial]:
    """Create a study with trials that have one measurement each."""
    await store.studies.create(make_study(uid))
    return [
        await store.studies.create_trial(make_trial(uid), [measurement(number, number / 2)])
        for number in range(1, count + 1)
    ]


def end_operation(running: Operation, state: OperationState = OperationState.SUCCEEDED) -> Operation:
    return replace(running, state=state, updated=running.updated + 1)


async def test_study_operation_can_finish_only_once(store: Store) -> None:
    await with_trials(store, 1)
    running = suggesting(1, 1)
    await store.studies.begin_operation(running)
    results = await asyncio.gather(
        *(
            store.studies.finish_operation(end_operation(running), suggested=[make_trial(1)])
            for _ in range(5)
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(result, Operation) for result in results) == 1
    assert sum(isinstance(result, StaleCommit) for result in results) == 4
    assert len(await store.studies.history([ONE])) == 2
    with pytest.raises(StaleCommit):
        await store.studies.finish_operation(end_operation(suggesting(2, 1)), suggested=[make_trial(1)])
    # Numbers used by a rejected step are available again.
    assert (await store.studies.create_trial(make_trial(1))).number == 3


async def test_deleting_a_study_deletes_all_of_its_database_records(store: Store) -> None:
    await with_trials(store, 10)
    await with_trials(store, 2, uid=2)
    ended, running = suggesting(1, 1), suggesting(2, 1)
    for operation in (ended, running):
        await store.studies.begin_operation(operation)
    await store.studies.finish_operation(end_operation(ended))
    await store.studies.delete_study(make_study(1).name, T0)
    assert await store.studies.history([ONE]) == ()
    assert await store.studies.measurements(ONE) == {}
    with pytest.raises(NotFound):
        await store.reader.operation(ended.name)
    failed = await store.reader.operation(running.name)
    assert failed.error is not None, "who waits for it is told"
    with pytest.raises(NotFound):
        await store.studies.create_trial(make_trial(1))
    assert len(await store.studies.history([StudyUid(2)])) == 2
    assert len(await store.studies.measurements(StudyUid(2))) == 2
    # The study's uid is available again, and no old rows appear.
    assert [trial.number for trial in await with_trials(store, 1)] == [1]
