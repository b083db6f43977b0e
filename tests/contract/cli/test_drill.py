"""`trainshed drill` against a service of paper."""

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


def step(number: int) -> dict[str, Any]:
    return {"number": number, "at": "2026-11-20T06:00:03.000000Z"}


def reported(outcome: str = "resumed", **changes: Any) -> dict[str, Any]:
    """A drill that fired, in a report."""
    return {
        "drill": DRILL | {"state": "done", "fireTime": "2026-11-20T06:00:03.000000Z"},
        "outcome": outcome,
        "lost": 2,
        "unit": "step",
        "advice": f"{outcome}: see to it.",
        "verdict": {"rule": "replica_lost", "effect": "replica_restarts", "count": 1, "budget": 5},
        "downSeconds": 0.5,
        "silentSeconds": 2.25,
        "restart": {"at": "2026-11-20T06:00:03.500000Z", "attempt": 1, "incarnation": 2},
        "steps": {
            "replica": "workerpool0-0",
            "first": step(1),
            "before": step(12),
            "after": step(11),
        },
    } | changes


UNDER_WAY = reported(
    "unknown", restart=None, lost=None, steps=dict.fromkeys(("first", "before", "after")), why="no"
)
UP = reported("unknown", lost=None, steps=reported()["steps"] | {"after": None}, why="so far")


def report(*drills: dict[str, Any], result: str = "PASS") -> dict[str, Any]:
    return {"name": "n", "result": result, "drills": list(drills)}


def running(service: FakeService) -> None:
    service.on("GET", JOB, job(replicas=[replica("workerpool0-0")]))
    service.on("POST", f"{JOB}:drill", DRILL)
    entries = [entry("created", "It was created.", 0), entry("drill_fired", "It is done.", 3)]
    service.on("GET", f"{JOB}/timeline", {"name": "n", "entries": entries})


def test_a_drill_is_ordered_watched_and_reported(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill, "_PAUSE", 0.0)
    running(service)
    answers = [UNDER_WAY, UP, UP, reported()]
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


def test_a_job_that_starts_over_exits_with_1(service: FakeService) -> None:
    running(service)
    service.on("GET", REPORT, report(reported("started_over"), result="FAIL"))
    data = service.cli("drill", "7", "--kind", "kill", "--format", "json")
    assert data.exit_code == 1
    assert json.loads(data.stdout)["outcome"] == "started_over"
