"""The retention of jobs over a real store and real files (docs/operate.md)."""

import asyncio
from functools import partial

from msgspec.structs import replace

from tests.contract.api.house import LOCATION, START, House
from tests.unit.specs_requests import custom_job, ml_job
from trainshed.api.resources.jobs import delete_for_user
from trainshed.controller.retention import RetentionTimer
from trainshed.core.lifecycle.records import Job, Parent
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobName
from trainshed.store.port import NewWork

DAY = 24 * 3600 * 10**9
LINE = "x" * 1000


def timer(house: House, days: int) -> RetentionTimer:
    async def no_pause(_: float) -> None:
        await asyncio.sleep(0)

    return RetentionTimer(
        days * DAY,
        house.store.reader,
        partial(delete_for_user, house.services),
        now=house.now,
        meters=house.services.meters,
        sleep=no_pause,
    )


async def created(house: House) -> str:
    """Create a job with a line in its log, and return its name."""
    answer = await house.call("POST", f"{LOCATION}/customJobs", custom_job())
    name: str = answer.json["name"]
    house.write_log(int(name.rpartition("/")[2]), "workerpool0-0", (START, LINE))
    return name


async def over(house: House) -> str:
    """Create such a job that ends now, and return its name."""
    name = await created(house)
    await house.become(name, state=JobState.CANCELLED, ended=house.clock)
    return name


async def status(house: House, name: str) -> int:
    return (await house.call("GET", f"/v1/{name}")).status


def logs(house: House) -> list[str]:
    return sorted(path.name for path in house.log_root.iterdir())


async def test_jobs_are_deleted_after_their_retention_period(house: House) -> None:
    runs, old = await created(house), await over(house)
    mine = await house.result("POST", "/v1/projects/p1/jobs", ml_job(job_id="mine"))
    await house.become("projects/p1/jobs/mine", state=JobState.CANCELLED, ended=house.clock)
    assert mine["jobId"] == "mine"
    house.clock += 80 * DAY
    young = await over(house)
    house.clock += 20 * DAY
    kept = timer(house, 90)
    await kept.look()
    assert [await status(house, name) for name in (runs, old, young)] == [200, 404, 200]
    assert await status(house, "projects/p1/jobs/mine") == 404
    assert logs(house) == [name.rpartition("/")[2] for name in (runs, young)]
    await kept.look()
    assert house.services.meters.deleted == 2


async def test_child_jobs_are_deleted_only_together_with_their_parent(house: House) -> None:
    parent = await created(house)
    made = await _made_by(house, parent)
    await house.become(made, state=JobState.SUCCEEDED, ended=house.clock)
    house.clock += 50 * DAY
    kept = timer(house, 30)
    await kept.look()
    assert not house.services.meters.deleted, "what made it still runs"
    await house.become(parent, state=JobState.SUCCEEDED, ended=house.clock)
    house.clock += 31 * DAY
    await kept.look()
    assert house.services.meters.deleted == 2
    assert [await status(house, name) for name in (parent, made)] == [404, 404]
    parent = await created(house)
    made = await _made_by(house, parent)
    for name in (made, parent):
        await house.become(name, state=JobState.SUCCEEDED, ended=house.clock)
    assert (await house.call("DELETE", f"/v1/{parent}")).status == 200
    house.clock += 31 * DAY
    await kept.look()
    assert await status(house, made) == 404, "what made it was deleted before"


async def _made_by(house: House, parent: str) -> str:
    """Store a child job like a tuning job does, with a log."""
    work, _ = await house.store.reader.job(JobName.parse(parent))
    assert isinstance(work, Job)
    uid = house.services.new_uid()
    name = replace(work.name, job_id=str(uid))
    child = replace(work, uid=uid, name=name, parent=Parent(work.uid, work.name, 1))
    await house.store.intake.create(NewWork(child))
    house.write_log(uid, "workerpool0-0", (START, LINE))
    return str(name)


async def test_started_deletion_completes_when_the_timer_stops(house: House) -> None:
    await over(house)
    house.clock += 2 * DAY
    begun, goes_on, removed = asyncio.Event(), asyncio.Event(), list[JobName]()

    async def remove(name: JobName) -> None:
        begun.set()
        await goes_on.wait()
        removed.append(name)

    retention = timer(house, 1)
    retention.remove = remove
    retention.start()
    await begun.wait()
    closing = asyncio.create_task(retention.close())
    await asyncio.sleep(0.01)
    goes_on.set()
    await closing
    assert len(removed) == 1


async def test_status_shows_the_retention_period(house: House) -> None:
    house.serve(settings=replace(house.services.settings, retention_jobs="90d"))
    assert (await house.result("GET", "/trainshed/v1/status"))["retentionJobs"] == "90d"
