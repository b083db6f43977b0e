"""Paging: page tokens belong to one query, and each request scans a limited number of jobs."""

from typing import cast

import pytest
from msgspec.structs import replace

from tests.unit.jobs import job
from trainshed.api.calls.paging import SCAN_LIMIT, Page, decode_position, encode_token, list_jobs
from trainshed.api.filters.jobs import JobFilter, JobTest
from trainshed.core.errors import InvalidRequest
from trainshed.core.names import Api, JobUid
from trainshed.store.port import Condition, Every, JobQuery, Matches
from trainshed.store.sqlite.reader import Reader

QUERY = ("projects/p1", "state=X")


@pytest.mark.parametrize("position", ["x", "-1", "1.5", "9" * 20, "9" * 5000, "٣"])
def test_forged_page_token_without_a_number_is_rejected(position: str) -> None:
    with pytest.raises(InvalidRequest):
        decode_position(encode_token(position, *QUERY), *QUERY)


class History:
    """A fake store of `count` jobs with uids from 1, which counts the returned jobs."""

    def __init__(self, count: int) -> None:
        self._jobs = [replace(job(), uid=JobUid(uid)) for uid in range(count, 0, -1)]
        self.read = 0

    async def matching(self, query: JobQuery, where: Condition) -> Matches:
        assert where == Every(())
        jobs = [j for j in self._jobs if query.after == 0 or j.uid < query.after][: query.limit]
        self.read += len(jobs)
        next_after = jobs[-1].uid if len(jobs) == query.limit else None
        return Matches(tuple((j, "") for j in jobs), next_after)


async def page_of(history: History, holds: JobTest, token: str = "") -> Page:
    query = JobQuery("p1", Api.VERTEX, None, limit=10)
    reader = cast(Reader, history)
    return await list_jobs(reader, query, JobFilter(holds), token=token, question=QUERY)


async def test_list_request_reads_a_limited_number_of_finished_jobs() -> None:
    """spec/invariants#finished-jobs: a filter that matches few jobs does not make a request arbitrarily
    slow."""
    history = History(5_000)
    page = await page_of(history, lambda job: False)
    assert (page.jobs, bool(page.next_token)) == ((), True)
    assert history.read <= SCAN_LIMIT + 250
    # Clients still reach the whole history, through short pages.
    pages = [await page_of(history, lambda job: job.uid == 4_999)]
    while token := pages[-1].next_token:
        pages.append(await page_of(history, lambda job: job.uid == 4_999, token))
    assert [job.uid for page in pages for job, _ in page.jobs] == [4_999]
    assert len(pages) > 1
