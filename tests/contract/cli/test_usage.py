"""What `jobs describe` says of what was used (spec/program#usage)."""

from typing import Any

import pytest

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService, exited, job, replica

JOBS = "/trainshed/v1/jobs"
USAGE = f"{JOBS}/7/usage"
GIB = 1 << 30
SEEN = "2026-11-20T06:00:57.000000Z"


def used(name: str = "workerpool0-0", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": name,
        "task": name,
        "state": "RUNNING",
        "machineType": "n1-standard-8",
        "vcpus": 8,
        "limitBytes": 27 * GIB,
        "incarnation": 1,
        "startTime": "2026-11-20T06:00:00.000000Z",
        "sampleTime": SEEN,
        "over": False,
        "processes": 3,
        "cpus": 2.0,
        "meanCpus": 1.0,
        "mostCpus": 4.0,
        "memoryBytes": GIB,
        "peakMemoryBytes": 2 * GIB,
        "diskBytes": 3 * GIB,
        "diskLimitBytes": 100 * GIB,
        "gpus": [],
        "points": [{"at": SEEN, "cpus": cpus, "memoryBytes": 1, "gpus": []} for cpus in (1, 2, 3)],
    }
    return found | more


def answer(*replicas: dict[str, Any], state: str = "RUNNING", hints: Any = ()) -> dict[str, Any]:
    return {
        "name": "projects/p/locations/us-central1/customJobs/7",
        "state": state,
        "attempt": 1,
        "replicas": list(replicas),
        "hints": list(hints),
    }


def gpu(busy: float | None = 0.97, used: int | None = 5 * GIB) -> dict[str, Any]:
    return {
        "uuid": "GPU-a",
        "type": "NVIDIA_TESLA_T4",
        "busy": busy,
        "meanBusy": busy,
        "memoryBytes": used,
        "totalMemoryBytes": 16 * GIB,
        "peakMemoryBytes": 6 * GIB,
    }


@pytest.fixture(autouse=True)
def _there_is_a_job(service: FakeService) -> None:
    service.on("GET", f"{JOBS}/7", job("7"))


def test_describe_ends_with_what_was_used_and_what_would_save_money(
    trainshed: Invoke, service: FakeService
) -> None:
    ran = replica("workerpool0-0", "EXITED", exit=exited(0))
    service.on("GET", f"{JOBS}/7", job("7", "SUCCEEDED", replicas=[ran]))
    hint = "It asked for n1-standard-8 and used next to nothing."
    service.on("GET", USAGE, answer(used(over=True, gpus=[gpu()]), hints=[hint]))
    lines = trainshed("jobs", "describe", "7").stdout.splitlines()
    header, row, _, told = lines[-4:]
    assert header.split("  ")[0] == "USED BY"
    assert "1.00 of 8" in row and "2.0 GiB of 27.0 GiB" in row
    assert "97%" in row and "6.0 GiB of 16.0 GiB" in row
    assert told == hint
    assert service.asked[-1].query["points"] == "0"


def test_describe_of_a_job_that_nobody_looked_at_says_no_more_than_before(
    trainshed: Invoke, service: FakeService
) -> None:
    ran = replica("workerpool0-0", "EXITED", exit=exited(0))
    service.on("GET", f"{JOBS}/7", job("7", "SUCCEEDED", replicas=[ran]))
    before = trainshed("jobs", "describe", "7")
    assert (before.exit_code, "USED" in before.stdout) == (0, False)
    service.on("GET", USAGE, answer(used(sampleTime="", points=[])))
    assert trainshed("jobs", "describe", "7").stdout == before.stdout
