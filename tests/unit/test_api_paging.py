"""Pages: tokens bound to their question, bounded scans, sizes."""

from typing import cast

import pytest
from msgspec.structs import replace

from tests.unit.jobs import job
from trainshed.api.calls.paging import SCAN_LIMIT, Page, decode_number, encode_token, list_jobs
from trainshed.api.filters.jobs import JobFilter, JobTest
from trainshed.core.errors import InvalidRequest
from trainshed.core.names import Api, JobUid
from trainshed.store.port import Condition, Every, JobQuery, Matches
from trainshed.store.sqlite.reader import Reader

QUESTION = ("projects/p1", "state=X")


@pytest.mark.parametrize("position", ["x", "-1", "1.5", "9" * 20, "9" * 5000, "٣"])
def test_a_token_that_somebody_wrote_himself_is_refused_where_it_holds_no_number(
    position: str,
) -> None:
    with pytest.raises(InvalidRequest):
        decode_number(encode_token(position, *QUESTION), *QUESTION)


class History:
    """A reader of `count` jobs with uids from 1; counts how many it handed out."""

    def __init__(self, count: int) -> None:
        self._jobs = [replace(job(), uid=JobUid(uid)) for uid in range(count, 0, -1)]
        self.read = 0

    async def matching(self, query: JobQuery, where: Condition) -> Matches:
        assert where == Every(())
        jobs = [j for j in self._jobs if query.after == 0 or j.uid < query.after][: query.limit]
        self.read += len(jobs)
        went_to = jobs[-1].uid if len(jobs) == query.limit else None
        return Matches(tuple((j, "") for j in jobs), went_to)


async def page_of(history: History, holds: JobTest, token: str = "") -> Page:
    query = JobQuery("p1", Api.VERTEX, None, limit=10)
    reader = cast(Reader, history)
    return await list_jobs(reader, query, JobFilter(holds), token=token, question=QUESTION)


async def test_one_request_looks_at_a_bounded_part_of_the_history() -> None:
    """spec/invariants#finished-jobs: what a filter drops must not make a request cost without end."""
    history = History(5_000)
    page = await page_of(history, lambda job: False)
    assert (page.jobs, bool(page.next_token)) == ((), True)
    assert history.read <= SCAN_LIMIT + 250
    # Short pages lead through the whole history all the same.
    pages = [await page_of(history, lambda job: job.uid == 4_999)]
    while token := pages[-1].next_token:
        pages.append(await page_of(history, lambda job: job.uid == 4_999, token))
    assert [job.uid for page in pages for job, _ in page.jobs] == [4_999]
    assert len(pages) > 1
