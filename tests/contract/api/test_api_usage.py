"""Resource usage of a job's replicas, over a real store and real files (spec/program#usage)."""

import json
from typing import Any

import pytest

from tests.contract.api.api_service import LOCATION, SECOND, START, ApiService
from tests.contract.api.fake_capacity import node
from tests.contract.api.test_api_trainshed import NAME, WORKER, create_job, end_job, start_job
from tests.unit.specs_requests import custom_job, pool
from trainshed.core.names import ReplicaId

PRIMARY = ReplicaId(0, 0)
USAGE = "/trainshed/v1/jobs/1000/usage"
MIB = 1 << 20


def write(service: ApiService, replica: ReplicaId, *entries: dict[str, Any], attempt: int = 1) -> None:
    directory = service.log_root / "1000" / str(attempt) / str(replica)
    directory.mkdir(parents=True)
    (directory / "usage.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def first_entry(*gpus: str) -> dict[str, Any]:
    size: dict[str, Any] = {"limit": 1000 * MIB, "cpus": 64, "gpus": list(gpus)}
    return {"started": START + SECOND, "incarnation": 1, **size}


def usage_entry(
    at: int, cpu: float, mib: int, *gpus: list[float | None], last: bool = False, **more: int
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "at": START + (1 + at) * SECOND,
        "cpu": cpu,
        "memory": mib * MIB,
        "peak": mib * MIB,
        "processes": 3,
        "gpus": gpus,
    }
    return entry | more | ({"last": True} if last else {})


async def test_running_job_shows_its_resource_usage(service: ApiService) -> None:
    await create_job(service)
    await start_job(service)
    looks = (
        usage_entry(1, 0.5, 50),
        usage_entry(3, 4.5, 70, disk=7 * MIB),
        usage_entry(13, 5.5, 60, disk=9 * MIB),
    )
    write(service, PRIMARY, first_entry(), *looks)
    answer = await service.result("GET", USAGE)
    primary, worker = answer["replicas"]
    assert (primary["state"], primary["over"], primary["processes"]) == ("RUNNING", False, 3)
    assert (primary["cpus"], primary["mostCpus"]) == (0.1, 2.0)
    assert primary["meanCpus"] == pytest.approx(5.5 / 13, abs=0.001)
    assert (primary["memoryBytes"], primary["peakMemoryBytes"]) == (60 * MIB, 70 * MIB)
    assert (primary["limitBytes"], primary["diskBytes"]) == (1000 * MIB, 9 * MIB)
    assert [point["cpus"] for point in primary["points"]] == [0.5, 2.0, 0.1]
    assert [point["diskBytes"] for point in primary["points"]] == [0, 7 * MIB, 9 * MIB]
    assert (worker["state"], worker["sampleTime"]) == ("RUNNING", "")


async def test_usage_returns_the_requested_number_of_newest_points(service: ApiService) -> None:
    await create_job(service)
    await start_job(service)
    write(service, PRIMARY, first_entry(), *(usage_entry(n, n / 2, n) for n in range(1, 100)))

    async def points(query: str) -> list[int]:
        answer = await service.result("GET", USAGE + query)
        return [point["memoryBytes"] // MIB for point in answer["replicas"][0]["points"]]

    assert await points("") == list(range(40, 100))
    assert await points("?points=2") == [98, 99]
    assert await points("?points=0") == []
    assert await points("?points=2000") == list(range(1, 100))
    refused = await service.call("GET", USAGE + "?points=2001")
    assert (refused.status, "Use 0 to 2000." in json.dumps(refused.error)) == (400, True)


async def test_usage_is_reported_per_gpu(service: ApiService) -> None:
    machine = {"machineType": "n1-standard-4", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 2}
    await service.call("POST", f"{LOCATION}/customJobs", custom_job(pool(machineSpec=machine)))
    await start_job(service)
    busy: list[float | None] = [60.0, 7, 16, 8, 61]
    write(service, PRIMARY, first_entry("GPU-a", "GPU-b"), usage_entry(120, 1.0, 5, busy, [None, 3, 16, 3]))
    (replica,) = (await service.result("GET", USAGE))["replicas"]
    assert replica["gpus"] == [
        {
            "uuid": "GPU-a",
            "type": "NVIDIA_TESLA_T4",
            "busy": 0.5,
            "meanBusy": 0.5,
            "memoryBytes": 7,
            "peakMemoryBytes": 8,
            "temperature": 61,
        },
        {
            "uuid": "GPU-b",
            "type": "NVIDIA_TESLA_T4",
            "busy": None,
            "meanBusy": None,
            "memoryBytes": 3,
            "peakMemoryBytes": 3,
            "temperature": None,
        },
    ]
    assert replica["points"][0]["gpus"] == [0.5, None]


async def test_usage_of_earlier_attempts_is_available(service: ApiService) -> None:
    """spec/failures#retries: a retry of the job starts a new attempt."""
    await create_job(service)
    await start_job(service)
    await end_job(service)
    write(service, PRIMARY, first_entry(), usage_entry(10, 1.0, 50, last=True))
    first = await service.result("GET", USAGE + "?attempt=1")
    assert first["replicas"][0]["peakMemoryBytes"] == 50 * MIB
    refused = await service.call("GET", USAGE + "?attempt=2")
    assert (refused.status, "The newest attempt is 1." in json.dumps(refused.error)) == (400, True)


async def test_node_list_shows_the_owner_of_each_gpu(service: ApiService) -> None:
    """spec/machines#gpus: the operator sees the exclusive assignment."""
    machine = {"machineType": "n1-standard-4", "acceleratorType": "NVIDIA_TESLA_T4"}
    body = custom_job(pool(machineSpec=machine | {"acceleratorCount": 1}), pool())
    await service.call("POST", f"{LOCATION}/customJobs", body)
    await start_job(service)
    write(service, PRIMARY, first_entry("GPU-a"))
    gone = NAME.replace("1000", "999")
    held = (f"{NAME} {PRIMARY}", f"{NAME} {WORKER}", f"{gone} {PRIMARY}")
    service.capacity.known = (node("node-1", *held),)
    (shown,) = (await service.result("GET", "/trainshed/v1/nodes"))["nodes"]
    has = {"accelerator": "NVIDIA_TESLA_T4", "accelerators": 1, "gpus": ["GPU-a"]}
    assert shown["replicas"] == [
        {"job": NAME, "replica": "workerpool0-0"} | has,
        {"job": NAME, "replica": "workerpool1-0"},
        {"job": gone, "replica": "workerpool0-0"},
    ]
