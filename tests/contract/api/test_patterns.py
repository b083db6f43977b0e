"""What callers send as patterns: nobody else waits for it (docs/security.md)."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest

from tests.contract.api.house import LOCATION, SECOND, START, Answer, House
from tests.unit.specs_requests import custom_job, pool
from trainshed.api.calls import paging

HOSTILE = "*a" * 20 + "*b"
LONG_LINE = "a" * 60_000


@asynccontextmanager
async def others_go_on() -> AsyncGenerator[None]:
    """Fails if the event loop stood still for 0.3 seconds of a processor's work: the clock would tell of
    the tests beside it as well."""
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


async def listed(house: House, filter_: str, **more: Any) -> Answer:
    body = {"resourceNames": ["projects/p1"], "filter": filter_, "pageSize": 1000} | more
    return await house.call("POST", "/v2/entries:list", body)


async def talkative(house: House, lines: int = 150) -> None:
    await house.result("POST", f"{LOCATION}/customJobs", custom_job(pool()))
    house.write_log(
        1000, "workerpool0-0", *((START + n * SECOND, LONG_LINE) for n in range(1, lines + 1))
    )
    house.clock = START + 1000 * SECOND


@pytest.mark.parametrize(
    "filter_",
    [
        f'textPayload:"{HOSTILE}"',
        f'jsonPayload.message:"{HOSTILE}"',
        f'labels.x:"{HOSTILE}" OR textPayload:"{HOSTILE}"',
        " OR ".join(f'textPayload:"*a*{n}*b"' for n in range(400)),
    ],
)
async def test_a_log_filter_keeps_nobody_waiting(house: House, filter_: str) -> None:
    await talkative(house)
    async with others_go_on():
        answer = await listed(house, filter_)
    assert answer.status == 200
    assert not answer.json.get("entries")


async def test_a_log_filter_that_takes_too_long_answers_a_short_page_and_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time at all each request looks at one batch's first entry, and the last one is found in the
    end."""
    monkeypatch.setattr(paging, "SECONDS", 0.0)
    await talkative(house, lines=3)
    house.write_log(1000, "workerpool0-1", (START + 900 * SECOND, "b"))
    token, lines, pages = "", list[str](), 0
    while True:
        answer = await listed(house, 'textPayload:"b*"', pageToken=token)
        lines += [entry["textPayload"] for entry in answer.json.get("entries", [])]
        token, pages = answer.json.get("nextPageToken", ""), pages + 1
        if not token:
            break
    assert lines == ["b"]
    assert pages > 1


async def test_list_filters_on_names_keep_nobody_waiting(house: House) -> None:
    for _ in range(20):
        body = custom_job(pool()) | {"displayName": "a" * 128, "labels": {"k": "a" * 63}}
        assert (await house.call("POST", f"{LOCATION}/customJobs", body)).status == 200
    for filter_ in (
        f'display_name:"{HOSTILE}"',
        f'labels.k:"{HOSTILE}"',
        " OR ".join(f'display_name:"*a*{n}*b"' for n in range(400)),
    ):
        async with others_go_on():
            answer = await house.call("GET", f"{LOCATION}/customJobs?filter={quote(filter_)}")
        assert answer.status == 200
        assert not answer.json.get("customJobs")


async def test_a_filter_has_a_largest_number_of_comparisons(house: House) -> None:
    answer = await listed(house, " ".join(["x"] * 501))
    assert answer.status == 400
    assert "500 comparisons" in answer.body.decode()
