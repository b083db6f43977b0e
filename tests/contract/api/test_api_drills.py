"""Drills over a real store and real log files: create, list, and report on resuming."""

from typing import Any

from tests.contract.api.api_service import LOCATION, SECOND, START, ApiService
from tests.contract.api.violations import violations
from tests.unit.jobs import exit_record
from tests.unit.specs_requests import custom_job, pool
from trainshed.core.lifecycle.events import DrillLanded
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaStarted
from trainshed.core.names import JobUid, ReplicaId

PRIMARY, WORKER = ReplicaId(0, 0), ReplicaId(1, 0)
NAME = "projects/p1/locations/us-central1/customJobs/1000"
JOB = "/trainshed/v1/jobs/1000"
OUTPUT = "gs://bucket/run"


class ApiServiceWithDrills(ApiService):
    async def apply_drills(self) -> None:
        """Act as the controller after a drill was requested for job 1000."""
        live = await self.store.ledger.load(JobUid(1000))
        for intent in live.intents if live else ():
            assert intent.event is not None
            await self.apply_events(NAME, intent.event)


SERVICE_CLASS = ApiServiceWithDrills


async def create_job(service: ApiService, **labels: str) -> Any:
    """Create job 1000 with a primary and a worker."""
    body = custom_job(pool(), pool(), baseOutputDirectory={"outputUriPrefix": OUTPUT}) | {
        "labels": {key.replace("_", "-"): value for key, value in labels.items()}
    }
    return await service.call("POST", f"{LOCATION}/customJobs", body)


async def order(service: ApiServiceWithDrills, **body: Any) -> Any:
    answer = await service.call("POST", f"{JOB}:drill", body)
    await service.apply_drills()
    return answer


async def test_created_drill_has_a_number_and_is_listed(service: ApiServiceWithDrills) -> None:
    await create_job(service)
    first = await order(service, kind="kill", replica="workerpool1-0", atLine="step 12")
    second = await order(service, kind="oom")
    assert first.json == {
        "number": 0,
        "kind": "kill",
        "replica": "workerpool1-0",
        "atLine": "step 12",
        "task": "workerpool1-0",
        "state": "ordered",
        "orderTime": "2025-10-09T08:53:20.000000Z",
        "fireTime": "",
        "attempt": 0,
        "incarnation": 0,
    }
    assert (second.json["replica"], second.json["atLine"]) == ("workerpool0-0", "")
    report = await service.result("GET", f"{JOB}/resumeReport")
    taken_up = [part["drill"] for part in report["drills"]]
    assert taken_up == [
        answer.json | {"number": number, "state": "armed"} for number, answer in enumerate((first, second), 1)
    ]


async def test_all_wrong_fields_of_a_drill_are_reported_at_once(service: ApiServiceWithDrills) -> None:
    await create_job(service)
    faults = violations(await order(service, kind="flood", replica="wrkr", atLine="(", what=1))
    assert "maintenance" in faults["kind"]
    assert "workerpool1-0" in faults["replica"]
    assert "missing )" in faults["atLine"]
    assert "what" in faults
    other = violations(await order(service, kind="kill", replica="workerpool2-0", atLine="x"))
    assert "Use one of: workerpool0-0, workerpool1-0" in other["replica"]
    for name in ("workerpool9-9", "wrkr"):
        fault = violations(await order(service, kind="kill", replica=name))["replica"]
        assert f"has no replica '{name}'. Use one of: workerpool0-0, workerpool1-0." in fault
    assert "kind" in violations(await order(service))
    assert (await service.result("GET", f"{JOB}/resumeReport"))["drills"] == []


async def test_drill_of_a_finished_job_is_rejected(service: ApiServiceWithDrills) -> None:
    await create_job(service)
    await service.run(NAME, at=START + SECOND)
    await service.apply_events(
        NAME,
        ReplicaExited(1, PRIMARY, 1, exit_record(0)),
        ReplicaExited(1, WORKER, 1, exit_record(None, signal=15)),
    )
    refused = await order(service, kind="kill")
    assert (refused.status, refused.error["status"]) == (400, "FAILED_PRECONDITION")


async def report_after_kill(service: ApiServiceWithDrills, *after: str) -> Any:
    """Return the report of a primary that logged three steps, was killed and restarted, and then
    logged `after`."""
    await create_job(service)
    await service.run(NAME, at=START + SECOND)
    before = [(START + (n + 1) * SECOND, f"step {n}/9") for n in (1, 2, 3)]
    service.write_log(1000, "workerpool0-0", (START + SECOND, "hello"), *before)
    service.clock = START + 5 * SECOND
    await order(service, kind="kill")
    service.clock = START + 8 * SECOND
    await service.apply_events(
        NAME,
        DrillLanded(1),
        ReplicaExited(1, PRIMARY, 1, exit_record(None, signal=9, ended=START + 6 * SECOND)),
        ReplicaStarted(1, PRIMARY, 2, START + 8 * SECOND),
    )
    lines = [(START + (9 + n) * SECOND, text) for n, text in enumerate(after)]
    service.write_log(1000, "workerpool0-0", *lines)
    return await service.result("GET", f"{JOB}/resumeReport")


async def test_drill_report_shows_a_resumed_job(service: ApiServiceWithDrills) -> None:
    """spec/operations#resume-report: the report contains the fault, the decision, the downtime in
    seconds, the lost steps, and whether the program resumed or started over."""
    report = await report_after_kill(service, "restored step 2", "step 3/9")
    assert (report["name"], report["result"]) == (NAME, "PASS")
    (entry,) = report["drills"]
    assert (entry["outcome"], entry["lost"], entry["unit"]) == ("resumed", 1, "step")
    assert entry["drill"]["kind"] == "kill"
    assert (entry["verdict"]["details"]["rule"], entry["verdict"]["details"]["effect"]) == (
        "replica_lost",
        "replica_restarts",
    )
    assert (entry["downSeconds"], entry["silentSeconds"]) == (2.0, 3.0)
    assert [entry[key] for key in ("firstStep", "stepBefore", "stepAfter")] == [1, 3, 3]
    assert entry["stepsOf"] == "workerpool0-0"


async def test_drill_report_uses_steps_logged_by_the_primary(service: ApiServiceWithDrills) -> None:
    await report_after_kill(service, "step 4/9")
    service.clock = START + 11 * SECOND
    await order(service, kind="kill", replica="worker 0")
    await service.apply_events(
        NAME,
        DrillLanded(2),
        ReplicaExited(1, WORKER, 1, exit_record(None, signal=9, ended=service.clock)),
        ReplicaStarted(1, WORKER, 2, START + 12 * SECOND),
    )
    service.write_log(1000, "workerpool0-0", (START + 13 * SECOND, "step 5/9"))
    second = (await service.result("GET", f"{JOB}/resumeReport"))["drills"][1]
    assert (second["stepsOf"], second["lost"]) == ("workerpool0-0", 0)
