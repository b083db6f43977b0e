"""The retention of jobs and logs over a real store and real files (docs/operate.md)."""

import asyncio
import dataclasses
import os
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.api.house import LOCATION, START, House
from tests.unit.specs_requests import custom_job, ml_job
from trainshed.api.resources.jobs import delete_for_user
from trainshed.controller.retention import Removals, RetentionTimer
from trainshed.core.lifecycle.records import Job, Parent
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobName, JobUid
from trainshed.core.retention import Retention
from trainshed.engines.streams import LogInventory

HOUR = 3600 * 10**9
DAY = 24 * HOUR
LINE = "x" * 1000


def timer(house: House, **settings: str) -> RetentionTimer:
    async def no_pause(_: float) -> None:
        await asyncio.sleep(0)

    return RetentionTimer(
        Retention(**settings),
        reader=house.store.reader,
        intake=house.store.intake,
        inventory=LogInventory(house.log_root),
        removals=Removals(partial(delete_for_user, house.services), house.services.logs.remove),
        now=house.now,
        meters=house.services.meters,
        sleep=no_pause,
    )


async def created(house: House, *, log: int = 1) -> str:
    """The name of a new job with so many lines of 1 kB in its log."""
    answer = await house.call("POST", f"{LOCATION}/customJobs", custom_job())
    name: str = answer.json["name"]
    house.write_log(int(name.rpartition("/")[2]), "workerpool0-0", *[(START, LINE)] * log)
    return name


async def over(house: House, *, log: int = 1) -> str:
    """The same of one that ends now."""
    name = await created(house, log=log)
    await house.become(name, state=JobState.CANCELLED, ended=house.clock)
    return name


async def status(house: House, name: str) -> int:
    return (await house.call("GET", f"/v1/{name}")).status


def logs(house: House) -> list[str]:
    return sorted(path.name for path in house.log_root.iterdir())


async def test_jobs_go_when_they_have_been_over_for_long_enough(house: House) -> None:
    runs, old = await created(house), await over(house)
    mine = await house.result("POST", "/v1/projects/p1/jobs", ml_job(job_id="mine"))
    await house.become("projects/p1/jobs/mine", state=JobState.CANCELLED, ended=house.clock)
    assert mine["jobId"] == "mine"
    house.clock += 80 * DAY
    young = await over(house)
    house.clock += 20 * DAY
    kept = timer(house, jobs="90d")
    await kept.look()
    assert [await status(house, name) for name in (runs, old, young)] == [200, 404, 200]
    assert await status(house, "projects/p1/jobs/mine") == 404
    assert logs(house) == [name.rpartition("/")[2] for name in (runs, young)]
    assert kept.report.jobs == 2
    assert kept.report.freed > 1000
    assert house.services.meters.deleted == {("jobs",): 2}
    await kept.look()
    assert kept.report.jobs == 2


async def test_what_was_made_goes_with_what_made_it_and_not_before(house: House) -> None:
    parent = await created(house, log=2000)
    made = await _made_by(house, parent)
    await house.become(made, state=JobState.SUCCEEDED, ended=house.clock)
    house.clock += 50 * DAY
    kept = timer(house, jobs="30d", size="1MB")
    await kept.look()
    assert (kept.report.jobs, kept.report.logs) == (0, 0), "what made it still runs"
    await house.become(parent, state=JobState.SUCCEEDED, ended=house.clock)
    house.clock += 2 * DAY
    await kept.look()
    assert (kept.report.jobs, kept.report.logs) == (0, 2)
    house.clock += 29 * DAY
    await kept.look()
    assert kept.report.jobs == 2
    assert [await status(house, name) for name in (parent, made)] == [404, 404]
    parent = await created(house)
    made = await _made_by(house, parent)
    for name in (made, parent):
        await house.become(name, state=JobState.SUCCEEDED, ended=house.clock)
    assert (await house.call("DELETE", f"/v1/{parent}")).status == 200
    house.clock += 31 * DAY
    await kept.look()
    assert await status(house, made) == 404, "what made it is gone"


async def _made_by(house: House, parent: str) -> str:
    """A job of a parent's, as a tuning job makes them; with a log."""
    work, _ = await house.store.reader.job(JobName.parse(parent))
    assert isinstance(work, Job)
    uid = house.services.new_uid()
    name = replace(work.name, job_id=str(uid))
    child = replace(work, uid=uid, name=name, parent=Parent(work.uid, work.name, 1))
    await house.store.intake.create_job(child, ())
    house.write_log(uid, "workerpool0-0", *[(START, LINE)] * 2000)
    return str(name)


async def test_a_log_that_is_gone_is_said_to_be(house: House) -> None:
    name = await over(house, log=2000)
    uid = name.rpartition("/")[2]
    house.clock += 31 * DAY
    kept = timer(house, size="1MB")
    await kept.look()
    assert logs(house) == []
    job = await house.result("GET", f"/trainshed/v1/jobs/{uid}")
    notice = "The log was deleted on 2025-11-09: logs are kept up to 1MB in all, the newest ones."
    assert job["logDeleted"] == notice
    page = await house.result("GET", f"/trainshed/v1/jobs/{uid}/logPage")
    assert (page["lines"], page["deleted"]) == ([], notice)
    body = {"resourceNames": ["projects/p1"], "filter": f'resource.labels.job_id="{uid}"'}
    entries = (await house.result("POST", "/v2/entries:list", body))["entries"]
    assert notice in [entry.get("textPayload") for entry in entries], "gcloud shows it as well"
    await timer(house, size="1MB").look()
    timeline: Any = await house.result("GET", f"/trainshed/v1/jobs/{uid}/timeline")
    assert [logged["kind"] for logged in timeline["entries"]].count("log_deleted") == 1


async def test_the_log_that_ended_first_goes_until_the_rest_fits(house: House) -> None:
    first = await over(house, log=700)
    house.clock += HOUR
    second = await over(house, log=700)
    await created(house, log=2000)
    kept = timer(house, size="1MB")
    await kept.look()
    left = logs(house)
    assert first.rpartition("/")[2] not in left and second.rpartition("/")[2] in left
    assert len(left) == 2, "the log of what runs is not counted, and stays"
    assert 700_000 < kept.report.kept < 10**6
    assert 700_000 < kept.report.freed < 10**6


async def test_a_look_that_was_cut_off_is_finished_by_the_next(house: House) -> None:
    """Told and not yet removed; set aside and not yet emptied; of a job whose record is gone."""
    name = await over(house, log=2000)
    uid = JobUid(int(name.rpartition("/")[2]))
    (house.log_root / ".deleted-77" / "1").mkdir(parents=True)
    house.write_log(4711, "workerpool0-0", *[(START, LINE)] * 2000)
    house.clock += 2 * DAY
    kept = timer(house, size="1MB")

    async def fails(_: JobUid) -> None:
        raise OSError("the disk is gone")

    broken = dataclasses.replace(kept, removals=replace(kept.removals, log=fails))
    await broken.look()
    assert (broken.report.logs, logs(house)) == (0, [str(uid), "4711"])
    await kept.look()
    assert logs(house) == []
    timeline = await house.store.reader.timeline(uid)
    assert [entry.kind for entry in timeline].count("log_deleted") == 1


async def test_one_job_whose_log_cannot_be_read_keeps_no_other(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable, last = await over(house), await over(house, log=2000)
    scan = os.scandir

    def refuses(path: Any) -> Any:
        if str(path).endswith(unreadable.rpartition("/")[2]):
            raise PermissionError(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuses)
    await timer(house, size="1MB").look()
    assert last.rpartition("/")[2] not in logs(house)
    house.clock += 2 * DAY
    await timer(house, jobs="1d").look()
    assert [await status(house, name) for name in (unreadable, last)] == [404, 404]


async def test_status_says_what_is_kept(house: House) -> None:
    assert "retention" not in await house.result("GET", "/trainshed/v1/status")
    kept = timer(house, jobs="90d", size="50GB")
    await kept.look()
    house.serve(retention=lambda: kept.report)
    retention = (await house.result("GET", "/trainshed/v1/status"))["retention"]
    assert (retention["jobs"], retention["size"]) == ("90d", "50GB")
