"""The retention of jobs over a real store and real files (docs/operate.md)."""

import asyncio
from functools import partial

from msgspec.structs import replace

from tests.contract.api.api_service import LOCATION, START, ApiService
from tests.unit.specs_requests import custom_job, ml_job
from trainshed.api.resources.jobs import delete_for_user
from trainshed.controller.retention import RetentionTimer
from trainshed.core.lifecycle.records import Job, Parent
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobName
from trainshed.store.port import NewWork

DAY = 24 * 3600 * 10**9
LINE = "x" * 1000


def timer(service: ApiService, days: int) -> RetentionTimer:
    async def no_pause(_: float) -> None:
        await asyncio.sleep(0)

    return RetentionTimer(
        days * DAY,
        service.store.reader,
        partial(delete_for_user, service.services),
        now=service.now,
        meters=service.services.meters,
        sleep=no_pause,
    )


async def create_job(service: ApiService) -> str:
    """Create a job with a line in its log, and return its name."""
    answer = await service.call("POST", f"{LOCATION}/customJobs", custom_job())
    name: str = answer.json["name"]
    service.write_log(int(name.rpartition("/")[2]), "workerpool0-0", (START, LINE))
    return name


async def create_finished_job(service: ApiService) -> str:
    """Create such a job that ends now, and return its name."""
    name = await create_job(service)
    await service.update_job(name, state=JobState.CANCELLED, ended=service.clock)
    return name


async def status(service: ApiService, name: str) -> int:
    return (await service.call("GET", f"/v1/{name}")).status


def logs(service: ApiService) -> list[str]:
    return sorted(path.name for path in service.log_root.iterdir())


async def test_jobs_are_deleted_after_their_retention_period(service: ApiService) -> None:
    runs, old = await create_job(service), await create_finished_job(service)
    mine = await service.result("POST", "/v1/projects/p1/jobs", ml_job(job_id="mine"))
    await service.update_job("projects/p1/jobs/mine", state=JobState.CANCELLED, ended=service.clock)
    assert mine["jobId"] == "mine"
    service.clock += 80 * DAY
    young = await create_finished_job(service)
    service.clock += 20 * DAY
    kept = timer(service, 90)
    await kept.run_pass()
    assert [await status(service, name) for name in (runs, old, young)] == [200, 404, 200]
    assert await status(service, "projects/p1/jobs/mine") == 404
    assert logs(service) == [name.rpartition("/")[2] for name in (runs, young)]
    await kept.run_pass()
    assert service.services.meters.deleted_jobs == 2


async def test_child_jobs_are_deleted_only_together_with_their_parent(service: ApiService) -> None:
    parent = await create_job(service)
    made = await _made_by(service, parent)
    await service.update_job(made, state=JobState.SUCCEEDED, ended=service.clock)
    service.clock += 50 * DAY
    kept = timer(service, 30)
    await kept.run_pass()
    assert not service.services.meters.deleted_jobs, "what made it still runs"
    await service.update_job(parent, state=JobState.SUCCEEDED, ended=service.clock)
    service.clock += 31 * DAY
    await kept.run_pass()
    assert service.services.meters.deleted_jobs == 2
    assert [await status(service, name) for name in (parent, made)] == [404, 404]
    parent = await create_job(service)
    made = await _made_by(service, parent)
    for name in (made, parent):
        await service.update_job(name, state=JobState.SUCCEEDED, ended=service.clock)
    assert (await service.call("DELETE", f"/v1/{parent}")).status == 200
    service.clock += 31 * DAY
    await kept.run_pass()
    assert await status(service, made) == 404, "what made it was deleted before"


async def _made_by(service: ApiService, parent: str) -> str:
    """Store a child job like a tuning job does, with a log."""
    work, _ = await service.store.reader.job(JobName.parse(parent))
    assert isinstance(work, Job)
    uid = service.services.new_uid()
    name = replace(work.name, job_id=str(uid))
    child = replace(work, uid=uid, name=name, parent=Parent(work.uid, work.name, 1))
    await service.store.intake.create(NewWork(child))
    service.write_log(uid, "workerpool0-0", (START, LINE))
    return str(name)


async def test_running_deletion_of_an_expired_job_completes_when_the_timer_stops(service: ApiService) -> None:
    await create_finished_job(service)
    service.clock += 2 * DAY
    begun, goes_on, removed = asyncio.Event(), asyncio.Event(), list[JobName]()

    async def remove(name: JobName) -> None:
        begun.set()
        await goes_on.wait()
        removed.append(name)

    retention = timer(service, 1)
    retention.remove = remove
    retention.start()
    await begun.wait()
    closing = asyncio.create_task(retention.close())
    await asyncio.sleep(0.01)
    goes_on.set()
    await closing
    assert len(removed) == 1


async def test_status_shows_the_retention_period(service: ApiService) -> None:
    service.serve(settings=replace(service.services.settings, retention_jobs="90d"))
    assert (await service.result("GET", "/trainshed/v1/status"))["retentionJobs"] == "90d"
