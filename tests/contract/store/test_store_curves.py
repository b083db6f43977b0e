"""What every store promises of the curves of jobs (`trainshed.store.resources`)."""

import pytest
from msgspec.structs import replace

from tests.contract.store.conftest import Reopen
from tests.contract.store.metadata_samples import make_curve, make_progress
from tests.contract.store.store_samples import ended, make_job
from tests.contract.store.study_samples import told
from trainshed.core.names import JobUid
from trainshed.store.port import Store

pytestmark = pytest.mark.anyio

JOB = JobUid(1)


async def test_what_was_put_is_read_back(store: Store, reopen: Reopen) -> None:
    await store.intake.create_job(make_job(1), ())
    first, second = make_progress("a/events"), make_progress("events")
    loss = make_curve(5, "a", "loss")
    assert await store.curves.put(JOB, second, ())
    assert await store.curves.put(JOB, first, (loss, make_curve(4, "", "loss")))
    further, lower = replace(first, offset=99), replace(loss, step=9, value=None, count=2)
    assert await store.curves.put(JOB, further, (lower, make_curve(6, "a", "acc")))
    expected = make_curve(4, "", "loss"), make_curve(6, "a", "acc"), lower
    assert await store.curves.files(JOB) == (further, second)
    assert await store.curves.series(JOB) == expected
    if (again := reopen()) and await again.curves.files(JOB):
        assert await again.curves.series(JOB) == expected


async def test_a_deleted_job_keeps_no_curves_and_gets_none(store: Store) -> None:
    await store.intake.create_job(make_job(1), ())
    await store.curves.put(JOB, make_progress("events"), (make_curve(4, "", "loss"),))
    await ended(store, make_job(1))
    await store.intake.delete_job(make_job(1).name, told(1))
    assert not await store.curves.put(JOB, make_progress("events"), ())
    assert await store.curves.files(JOB) == ()
    assert await store.curves.series(JOB) == ()
    assert await store.curves.unfinished() == ()


async def test_a_job_that_is_over_is_unfinished_until_its_files_are_read(store: Store) -> None:
    for number in (1, 2, 3):
        await store.intake.create_job(make_job(number), ())
    for number in (1, 2):
        await store.curves.put(JobUid(number), make_progress("events"), ())
    assert await store.curves.unfinished() == ()  # They run.
    for number in (2, 3):
        await ended(store, make_job(number))
    assert await store.curves.unfinished() == (2,)
    await store.curves.finish(JobUid(2))
    assert await store.curves.unfinished() == ()
