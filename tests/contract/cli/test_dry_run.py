"""`trainshed run --dry-run`: the request for a job file, and the printed answer."""

import json
from pathlib import Path
from typing import Any

from tests.contract.cli.conftest import NOW
from tests.contract.cli.fake_service import FakeService

EXPLAIN = "/trainshed/v1/jobs:explain"
POOLS = [{"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": 2}]


def answer(**more: Any) -> dict[str, Any]:
    record: dict[str, Any] = {
        "project": "p",
        "location": "us-central1",
        "admitted": True,
        "places": [{"replica": "workerpool0-0", "task": "workerpool0-0", "node": "node-1"}],
        "notices": ["Runs on Python 3.11."],
        "warnings": ["The bucket is elsewhere."],
        "machines": [
            {
                "pool": "workerpool0",
                "replicas": 1,
                "machineType": "n1-standard-4",
                "vcpus": 4,
                "memoryLimitBytes": 12 * 2**30,
                "accelerators": {"type": "NVIDIA_TESLA_T4", "count": 2},
                "diskGb": 100,
            }
        ],
    }
    return record | more


WAITS = answer(
    admitted=False,
    places=[],
    waiting={
        "reason": "quota",
        "message": "needs 8 CPUs, 4 of 8 are used by job 17",
        "hint": "would start now with at most 4 replicas",
        "blockers": ["projects/p/jobs/a"],
        "position": 3,
    },
)


def last_request(service: FakeService) -> dict[str, Any]:
    return json.loads(service.bodies("POST", EXPLAIN)[-1])


def test_dry_run_of_a_startable_job_exits_with_0(service: FakeService, tmp_path: Path) -> None:
    service.on("POST", EXPLAIN, answer())
    file = tmp_path / "train.json"
    file.write_text(json.dumps({"workerPoolSpecs": POOLS}))
    result = service.cli("run", "--dry-run", "-f", str(file))
    assert result.exit_code == 0, result.stderr
    assert last_request(service) == {
        "api": "vertex",
        "project": "p",
        "location": "us-central1",
        "job": {"displayName": "train", "jobSpec": {"workerPoolSpecs": POOLS}},
    }
    lines = result.stdout.splitlines()
    assert lines[0] == "Would start now  p, us-central1"
    assert lines[3].split("  ")[0] == "workerpool0"
    assert "12.0 GiB  2 × NVIDIA_TESLA_T4  100 GB" in lines[3]
    assert lines[6].split() == ["workerpool0-0", "node-1"]
    assert lines[-2:] == ["notice: Runs on Python 3.11.", "warning: The bucket is elsewhere."]


def test_dry_run_of_a_waiting_job_prints_the_reason(service: FakeService) -> None:
    service.on("POST", EXPLAIN, WAITS)
    text = json.dumps({"trainingInput": {"scaleTier": "BASIC", "pythonModule": "m"}})
    result = service.cli("run", "--dry-run", "-f", "-", "--region", "us-east1", input=text)
    assert result.exit_code == 3, result.stderr
    assert result.stdout.splitlines()[:6] == [
        "Runs  m",
        "Would wait  p, us-central1",
        "  needs 8 CPUs, 4 of 8 are used by job 17 (quota)",
        "  would start now with at most 4 replicas",
        "  held by projects/p/jobs/a",
        "  2 jobs before it",
    ]
    assert last_request(service)["job"] == {
        "jobId": f"job_{NOW // 10**6}",
        "trainingInput": {"scaleTier": "BASIC", "pythonModule": "m", "region": "us-east1"},
    }
