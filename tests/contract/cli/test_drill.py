"""`trainshed drill` against a fake service."""

import json
from typing import Any

import pytest

from tests.contract.cli.fake_service import FakeService, entry, job, replica
from trainshed.cli.jobs import drill

JOB = "/trainshed/v1/jobs/7"
REPORT = f"{JOB}/resumeReport"
DRILL = {
    "number": 1,
    "kind": "kill",
    "replica": "workerpool0-0",
    "task": "workerpool0-0",
    "orderTime": "2026-11-20T06:00:02.000000Z",
}


def drill_report(outcome: str = "resumed", **changes: Any) -> dict[str, Any]:
    """Return a drill that fired, in its form in a report."""
    verdict = {"rule": "replica_lost", "effect": "replica_restarts", "count": 1, "budget": 5}
    return {
        "drill": DRILL | {"state": "done", "fireTime": "2026-11-20T06:00:03.000000Z"},
        "outcome": outcome,
        "advice": f"{outcome}: see to it.",
        "verdict": {"kind": "verdict", "details": verdict},
        "restartTime": "2026-11-20T06:00:03.500000Z",
        "downSeconds": 0.5,
        "silentSeconds": 2.25,
        "firstStep": 1,
        "stepBefore": 12,
        "stepAfter": 11,
        "lost": 2,
        "unit": "step",
        "stepsOf": "workerpool0-0",
    } | changes


INJECTED = drill_report("unknown", restartTime="", stepBefore=None, stepAfter=None, lost=None)
RESTARTED = drill_report("unknown", lost=None, stepAfter=None, why="so far")


def report(*drills: dict[str, Any], result: str = "PASS") -> dict[str, Any]:
    return {"name": "n", "result": result, "drills": list(drills)}


def running(service: FakeService) -> None:
    service.on("GET", JOB, job(replicas=[replica("workerpool0-0")]))
    service.on("POST", f"{JOB}:drill", DRILL)
    entries = [entry("created", "It was created.", 0), entry("drill_fired", "It is done.", 3)]
    service.on("GET", f"{JOB}/timeline", {"name": "n", "entries": entries})


def test_drill_is_created_watched_and_reported(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill, "_POLL_INTERVAL", 0.0)
    running(service)
    answers = [INJECTED, RESTARTED, RESTARTED, drill_report()]
    service.on("GET", REPORT, *map(report, answers))
    text = service.cli("drill", "7", "--kind", "kill", "--replica", "worker 0", "--at-line", "x")
    assert text.exit_code == 0, text.output
    (sent,) = service.bodies("POST", f"{JOB}:drill")
    assert json.loads(sent) == {"kind": "kill", "replica": "worker 0", "atLine": "x"}
    assert text.stdout.splitlines() == [
        "Drill: kill of workerpool0-0",
        "06:00:03.000  drill_fired: It is done.",
        "",
        "Drill 1  kill of workerpool0-0",
        "Decided  replica restarts by the rule replica_lost",
        "Down     0.50s to the next start",
        "Steps    12 before, 11 after",
        "Outcome  resumed, 2 steps lost",
        "Advice   see to it.",
    ]


def test_drill_command_exits_with_status_1_if_the_job_starts_from_the_beginning(service: FakeService) -> None:
    running(service)
    service.on("GET", REPORT, report(drill_report("started_over"), result="FAIL"))
    data = service.cli("drill", "7", "--kind", "kill", "--format", "json")
    assert data.exit_code == 1
    assert json.loads(data.stdout)["outcome"] == "started_over"
