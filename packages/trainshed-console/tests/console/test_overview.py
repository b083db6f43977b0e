"""The overview page: running, waiting and failed jobs, resource usage, and isolation between projects."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.console.browser import Browser, ConsoleService, text_of
from tests.console.test_pages import CUSTOM_JOBS, submit
from tests.console.test_sessions import JOB
from tests.contract.api.api_service import SECOND
from tests.contract.api.fake_capacity import node
from tests.contract.api.test_api_usage import PRIMARY, first_entry, usage_entry, write
from tests.people import add_user
from tests.unit.jobs import exit_record
from trainshed.core.capacity import NodeCondition, Waiting, WaitReason
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.replica_events import ReplicaExited
from trainshed.core.names import JobUid, ReplicaId
from trainshed_console.pages import capacity

CUSTOM_JOBS_PARENT = "projects/p1/locations/us-central1/customJobs"


async def start_job(service: ConsoleService, name: str) -> Job:
    """Return a running job with two GPUs."""
    spec: Any = json.loads(json.dumps(JOB["jobSpec"]))
    devices = {"acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 2}
    spec["workerPoolSpecs"][0]["machineSpec"] = {"machineType": "n1-standard-4", **devices}
    return await service.run(f"{CUSTOM_JOBS_PARENT}/{await submit(service, displayName=name, jobSpec=spec)}")


async def start_placed_job(service: ConsoleService) -> Job:
    """Return a running job whose two GPUs count as allocated."""
    job = await start_job(service, "trains")
    service.capacity.held = (job,)
    return job


async def test_overview_shows_jobs_nodes_and_usage(service: ConsoleService, browser: Browser) -> None:
    assert "No job runs. Submit your first job" in text_of(await browser.get("/overview"))
    await start_placed_job(service)
    waits = [await submit(service, displayName=f"waits-{n}") for n in range(2)]
    for place, uid in enumerate(reversed(waits), 1):
        why = Waiting(WaitReason.CAPACITY, "no node is free", "trains must end")
        service.capacity.reasons[JobUid(int(uid))] = why
        service.capacity.positions[JobUid(int(uid))] = place
    hot = replace(node("node-3"), condition=NodeCondition.QUARANTINED, cause="its GPU is <b>lost</b>")
    service.capacity.known = (*service.capacity.known, hot)
    service.clock += 3600 * SECOND
    page = text_of(await browser.get("/overview"))
    assert "Nodes quarantined 1 node-3 its GPU is &lt;b&gt;lost&lt;/b&gt;" in page
    assert "1 running 2 waiting 0 failed in the last day" in page
    assert page.index("waits-1") < page.index("waits-0"), "the next job to start comes first"
    assert "No node is free Trains must end" in page
    assert "GPUs by user owner@trainshed.local 2" in page
    assert "GPU-hours in the last 7 days" in page and "2.0 , 0.0 used" in page
    assert "Nodes ready 2" in page and "Version 0.0.1" in page


async def test_queue_page_shows_the_first_waiting_jobs(
    service: ConsoleService, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "_MAX_WAITING", 1)
    for number in range(2):
        await submit(service, displayName=f"waits-{number}")
    page = text_of(await browser.get("/queue"))
    assert "waits-0" in page and "waits-1" not in page and "More jobs are waiting." in page


async def test_nodes_page_shows_allocated_and_used_resources(
    service: ConsoleService, browser: Browser
) -> None:
    """The page omits resources without measurements."""
    full = str((await start_job(service, "trains")).name)
    finished_name = full.replace("1000", "999")
    gpu: list[float | None] = [4 << 30, 16 << 30, 5 << 30, 61]
    looks = usage_entry(1, 0.5, 900, [0.5, *gpu]), usage_entry(2, 2.0, 3 << 10, [1.0, *gpu])
    write(service, PRIMARY, first_entry("GPU-a"), *looks)
    service.capacity.known = (
        node("node-1", f"{full} {PRIMARY}"),
        node("node-2", f"{finished_name} {PRIMARY}"),
    )
    page = text_of(await browser.get("/nodes"))
    assert "2 of 8 allocated, 1.5 used" in page and "4.0 GiB of 32.0 GiB allocated, 3.0 GiB used" in page
    assert page.count("used") == 2 and "GPU 50 % busy, 4.0 GiB, 61 °C" in page


async def test_nodes_page_shows_daily_allocation(service: ConsoleService, browser: Browser) -> None:
    """The page draws no chart for resources that were never allocated."""
    job = await start_placed_job(service)
    (replica,) = job.replicas
    service.capacity.held = (replace(job, replicas=(replace(replica, node="node-1"),)),)
    service.clock += 3600 * SECOND
    page = (await browser.get("/nodes")).body.decode()
    assert page.count("<figure") == 1
    # The job requests two GPUs. The node has one, which counts for one hour of 24.
    assert ": 4 % allocated" in page


async def test_overview_counts_failures_by_cause(service: ConsoleService, browser: Browser) -> None:
    jobs = [await start_job(service, f"<b>broken-{number}") for number in range(2)]
    service.clock += 86_400 * SECOND  # The submission time does not matter.
    for job in jobs:
        await service.apply_events(str(job.name), ReplicaExited(1, ReplicaId(0, 0), 1, exit_record(1)))
    page = await browser.get("/overview")
    assert "2 failed in the last day" in text_of(page)
    assert "2 User code failed" in text_of(page), text_of(page)
    assert b"<b>broken" not in page.body
    service.clock += 2 * 86_400 * SECOND
    assert "0 failed in the last day" in text_of(await browser.get("/overview"))


async def test_overview_excludes_other_projects(service: ConsoleService, guest: Browser) -> None:
    await start_job(service, "secret-name")
    await service.call("POST", CUSTOM_JOBS.replace("p1", "p2"), {**JOB, "displayName": "of p2"})
    for path in ("/overview", "/overview?project=p2", "/overview?project=-"):
        page = text_of(await guest.get(path))
        assert "0 running 1 waiting" in page and "of p2" in page
        for theirs in ("secret-name", "Nodes ready", "GPUs by user"):
            assert theirs not in page
    add_user(service.tokens, "g@example.com", project="p3")
    body = (await guest.get("/queue")).body.decode()
    assert "<option selected>p2</option><option>p3</option></select>" in body
