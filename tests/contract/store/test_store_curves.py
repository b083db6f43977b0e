"""What every store promises of the curves of jobs (`trainshed.store.resources`)."""

import pytest

from tests.contract.store.metadata_samples import make_progress
from tests.contract.store.store_samples import ended, make_job
from trainshed.core.names import JobUid
from trainshed.store.port import Store

pytestmark = pytest.mark.anyio

JOB = JobUid(1)


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
