"""Denial of service by patterns in filters: a caller's filter must not block other callers
(docs/security.md)."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest

from tests.contract.api.api_service import LOCATION, SECOND, START, Answer, ApiService
from tests.unit.specs_requests import custom_job, pool
from trainshed.api.calls import paging

HOSTILE = "*a" * 20 + "*b"
LONG_LINE = "a" * 60_000


@asynccontextmanager
async def event_loop_stays_responsive() -> AsyncGenerator[None]:
    """Fail if the event loop was blocked for more than 0.3 s of CPU time. Wall time would also
    include the load of parallel tests."""
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.005)
            worst = max(worst, time.thread_time() - before)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.02)
    yield
    await asyncio.sleep(0.02)
    ticking.cancel()
    assert worst < 0.3


async def list_entries(service: ApiService, filter_: str, **more: Any) -> Answer:
    body = {"resourceNames": ["projects/p1"], "filter": filter_, "pageSize": 1000} | more
    return await service.call("POST", "/v2/entries:list", body)


async def write_long_lines(service: ApiService, lines: int = 150) -> None:
    await service.result("POST", f"{LOCATION}/customJobs", custom_job(pool()))
    service.write_log(1000, "workerpool0-0", *((START + n * SECOND, LONG_LINE) for n in range(1, lines + 1)))
    service.clock = START + 1000 * SECOND


@pytest.mark.parametrize(
    "filter_",
    [
        f'textPayload:"{HOSTILE}"',
        f'jsonPayload.message:"{HOSTILE}"',
        f'labels.x:"{HOSTILE}" OR textPayload:"{HOSTILE}"',
        " OR ".join(f'textPayload:"*a*{n}*b"' for n in range(400)),
    ],
)
async def test_expensive_log_filter_does_not_block_the_event_loop(service: ApiService, filter_: str) -> None:
    await write_long_lines(service)
    async with event_loop_stays_responsive():
        answer = await list_entries(service, filter_)
    assert answer.status == 200
    assert not answer.json.get("entries")


async def test_slow_log_filter_returns_short_pages_until_all_entries_are_checked(
    service: ApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a time limit of 0, each request checks only the first entry of a batch. Following pages
    find the last entry."""
    monkeypatch.setattr(paging, "SCAN_SECONDS", 0.0)
    await write_long_lines(service, lines=3)
    service.write_log(1000, "workerpool0-1", (START + 900 * SECOND, "b"))
    token, lines, pages = "", list[str](), 0
    while True:
        answer = await list_entries(service, 'textPayload:"b*"', pageToken=token)
        lines += [entry["textPayload"] for entry in answer.json.get("entries", [])]
        token, pages = answer.json.get("nextPageToken", ""), pages + 1
        if not token:
            break
    assert lines == ["b"]
    assert pages > 1


async def test_expensive_name_filter_does_not_block_the_event_loop(service: ApiService) -> None:
    for _ in range(20):
        body = custom_job(pool()) | {"displayName": "a" * 128, "labels": {"k": "a" * 63}}
        assert (await service.call("POST", f"{LOCATION}/customJobs", body)).status == 200
    for filter_ in (
        f'display_name:"{HOSTILE}"',
        f'labels.k:"{HOSTILE}"',
        " OR ".join(f'display_name:"*a*{n}*b"' for n in range(400)),
    ):
        async with event_loop_stays_responsive():
            answer = await service.call("GET", f"{LOCATION}/customJobs?filter={quote(filter_)}")
        assert answer.status == 200
        assert not answer.json.get("customJobs")


async def test_number_of_comparisons_in_a_filter_is_limited(service: ApiService) -> None:
    answer = await list_entries(service, " ".join(["x"] * 501))
    assert answer.status == 400
    assert "500 comparisons" in answer.body.decode()
