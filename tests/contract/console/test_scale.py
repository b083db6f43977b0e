"""A list of a hundred thousand jobs, and what two hundred who look at it cost."""

import asyncio
import time

import pytest
from msgspec.structs import replace

from tests.contract.console.browser import Browser, ConsoleHouse
from tests.contract.console.test_pages import submit
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.store.port import NewWork

pytestmark = pytest.mark.soak
JOBS = 100_000
_BATCH = 2_000


async def fill(house: ConsoleHouse, count: int) -> None:
    """Store so many jobs."""
    uid = await submit(house, displayName="like all others")
    first, _ = await house.store.reader.job_by_uid(JobUid(int(uid)))
    assert isinstance(first, Job)
    for start in range(1, count, _BATCH):
        made: list[NewWork] = []
        for number in range(start, min(start + _BATCH, count)):
            other = JobUid(int(uid) + number)
            name = replace(first.name, job_id=str(other))
            labels = (("run", str(number)),)
            job = replace(
                first, uid=other, name=name, display_name=f"train-{number}", labels=labels
            )
            made.append(NewWork(job))
        await house.store.intake.create_jobs(made)


async def test_the_first_page_of_very_many_jobs_is_there_at_once(
    house: ConsoleHouse, browser: Browser
) -> None:
    await fill(house, JOBS)
    await browser.get("/")
    took: dict[str, float] = {}
    for path in ("/", "/?state=RUNNING", "/?state=QUEUED,PREPARING", "/?search=train-99999"):
        began = time.process_time()
        answer = await browser.get(path)
        took[path] = time.process_time() - began
        assert answer.status == 200
    print(took)
    assert took["/"] < 0.1, took


async def test_two_hundred_who_look_share_each_look(house: ConsoleHouse, browser: Browser) -> None:
    uid = await submit(house)
    headers = browser.credentials

    async def watch() -> None:
        async with house.events("/events/jobs", headers) as events:
            await events.next("parts")

    began = time.process_time()
    await asyncio.gather(*(watch() for _ in range(200)))
    house.notices.publish(JobUid(int(uid)))
    took = time.process_time() - began
    print(took)
    assert took < 3, took
