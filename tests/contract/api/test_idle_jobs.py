"""Idle jobs get a warning and are then stopped, based on stored usage files (docs/operate.md)."""

import json
from typing import Any

from msgspec.structs import replace

from tests.contract.api.api_service import LOCATION, SECOND, START, ApiService
from tests.unit.specs_requests import custom_job
from trainshed.controller.idling import IdlePolicy, IdleWatch
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid

UID = JobUid(1000)
NAME = "projects/p1/locations/us-central1/customJobs/1000"


async def running(service: ApiService) -> Job:
    await service.call("POST", f"{LOCATION}/customJobs", custom_job())
    return await service.run(NAME)


def record_usage(service: ApiService, seconds: int, busy: float) -> None:
    """Record how many seconds the replica's GPU was busy, and advance the clock."""
    directory = service.log_root / str(UID) / "1" / "workerpool0-0"
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "usage.jsonl"
    start = {"started": START, "incarnation": 1, "cpus": 4, "gpus": ["GPU-a"]}
    entries: list[dict[str, Any]] = [] if file.exists() else [start]
    service.clock += seconds * SECOND
    look = {"at": service.clock, "cpu": 1.0, "memory": 1, "peak": 1, "processes": 1}
    entries.append({**look, "gpus": [[busy, 1, 16, 1]]})
    with file.open("a") as usage:
        usage.writelines(json.dumps(entry) + "\n" for entry in entries)


async def kinds(service: ApiService) -> list[str]:
    return [entry.kind for entry in await service.store.reader.timeline(UID)]


async def test_idle_job_is_warned_and_then_stopped(service: ApiService) -> None:
    job = await running(service)
    unreadable = replace(job, uid=JobUid(1))
    (service.log_root / "1" / "1" / "workerpool0-0" / "usage.jsonl").mkdir(parents=True)
    watch = IdleWatch(
        IdlePolicy(gpus=600 * SECOND, stop=300 * SECOND),
        running=lambda: (unreadable, job),
        usages=service.services.logs,
        reader=service.store.reader,
        intake=service.store.intake,
        wake=service.woken.append,
        publish=service.notices.publish,
        now=service.now,
    )
    await watch.check()
    for seconds, busy in ((60, 50.0), (590, 50.1)):
        record_usage(service, seconds, busy)
        await watch.check()
    assert "idle" not in await kinds(service)
    record_usage(service, 20, 50.1)
    for _ in range(2):
        await watch.check()
    assert (await kinds(service)).count("idle") == 1
    record_usage(service, 30, 80.0)
    record_usage(service, 599, 80.1)
    await watch.check()
    assert (await kinds(service)).count("idle") == 1, "it worked meanwhile"
    record_usage(service, 2, 80.1)
    await watch.check()
    assert (await kinds(service)).count("idle") == 2
    record_usage(service, 290, 80.2)
    service.clock += 900 * SECOND  # No poll has checked the GPUs during this time.
    await watch.check()
    live = await service.store.ledger.load(UID)
    assert live is not None and live.intents == ()
    record_usage(service, 11, 80.2)
    await watch.check()
    live = await service.store.ledger.load(UID)
    assert live is not None
    ((intent,),) = (live.intents,)
    assert intent.event is not None
    over = await service.apply_events(NAME, intent.event)
    assert over.outcome is not None and over.outcome.rule == "cancelled_idle"
    assert over.outcome.error is not None
    assert "was idle for longer than this service allows" in over.outcome.error.message
    assert service.woken[-1] == UID
