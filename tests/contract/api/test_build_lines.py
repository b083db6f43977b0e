"""Lines of a build in a job's log (spec/logs#lines, facts/lifecycle#service-lines): task `service`.
By Logging's filters: `test_api_logging.py`."""

from tests.contract.api.house import LOCATION, SECOND, START, House
from tests.unit.specs_requests import custom_job, pool
from trainshed.core.lifecycle.events import JobAdmitted, PreparationAdvanced, RuntimePrepared

JOB = "/trainshed/v1/jobs/1000"
NAME = f"{LOCATION}/customJobs/1000"[4:]


async def _preparing(house: House) -> None:
    """Job 1000 was admitted; two lines of its build were written, none of a replica."""
    await house.result("POST", f"{LOCATION}/customJobs", custom_job(pool(), pool()))
    await house.happen(NAME, JobAdmitted(()), PreparationAdvanced(1, "Downloading numpy", SECOND))
    house.write_log(
        1000, "service", (START + 2 * SECOND, "Building"), (START + 3 * SECOND, "Downloading numpy")
    )
    house.clock = START + 60 * SECOND


async def test_who_follows_the_log_gets_them_first(house: House) -> None:
    await _preparing(house)
    async with house.stream(f"{JOB}/logs?follow=true") as lines:
        first = await lines.next()
        assert (first["task"], first["replica"], first["message"]) == (
            "service",
            "service",
            "Building",
        )
        assert (await lines.next())["message"] == "Downloading numpy"
        house.write_log(1000, "service", (START + 4 * SECOND, "Installed"))
        assert (await lines.next())["message"] == "Installed"
        await house.happen(NAME, RuntimePrepared(1, SECOND))
        house.write_log(1000, "workerpool0-0", (START + 5 * SECOND, "hello"))
        assert (await lines.next())["task"] == "workerpool0-0"


async def test_they_count_among_the_last_lines(house: House) -> None:
    await _preparing(house)
    async with house.stream(f"{JOB}/logs?tail=1") as lines:
        assert (await lines.next())["message"] == "Downloading numpy"
        assert await lines.next() is None
    async with house.stream(f"{JOB}/logs?replica=service&tail=1") as lines:
        assert (await lines.next())["message"] == "Downloading numpy"
