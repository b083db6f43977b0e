"""What a job is told of its reducers when it is created, and before (spec/submit#warnings,
spec/submit#preflight, spec/reduction)."""

import pytest
from msgspec.structs import replace

from tests.contract.api.house import HOSTS, LOCATION, House
from tests.unit.specs_requests import (
    REDUCER,
    SKLEARN,
    ReducingRuntimes,
    Request,
    container,
    custom_job,
    package,
)
from trainshed.api.rest import ApiApplication

pytestmark = pytest.mark.anyio
PYTORCH = "us-docker.pkg.dev/vertex-ai/training/pytorch-cpu.2-4.py310:latest"


@pytest.fixture
def reducing(house: House) -> House:
    """One with a catalog that has reducers."""
    house.services = replace(house.services, runtimes=ReducingRuntimes())
    house.app = ApiApplication(house.services, house.tokens.authenticate, hosts=HOSTS)
    return house


def job(image: str, reducers: int) -> Request:
    """4 workers of 32 Gbps together 128."""
    machine = {"machineSpec": {"machineType": "n1-standard-16"}}
    worker = package(executorImageUri=image) | machine
    reducer = container(imageUri=REDUCER) | {
        "machineSpec": {"machineType": "n1-highcpu-16"},
        "replicaCount": str(reducers),
    }
    return custom_job(worker, worker | {"replicaCount": "3"}, reducer)


async def told_at_create(house: House, asked: Request) -> list[str]:
    answer = await house.call("POST", f"{LOCATION}/customJobs", asked)
    assert answer.status == 200, answer.body
    story = await house.store.reader.timeline(house.woken[-1])
    return [entry.message for entry in story if entry.kind == "warning"]


async def told_before(house: House, asked: Request) -> list[str]:
    where = {"api": "vertex", "project": "p1", "location": "us-central1"}
    answer = await house.call("POST", "/trainshed/v1/jobs:explain", {**where, "job": asked})
    assert answer.status == 200, answer.body
    return answer.json["warnings"]


async def test_too_few_reducers_are_a_warning(reducing: House) -> None:
    """spec/reduction#exactness: both sums, and how many would be enough; the same before and at creation."""
    few = job(PYTORCH, 3)
    (said,) = await told_at_create(reducing, few)
    assert await told_before(reducing, few) == [said]
    for words in ("96 Gbps", "128 Gbps", "4 reducers of that machine type would be enough"):
        assert words in said
    enough = job(PYTORCH, 4)
    assert await told_before(reducing, enough) == await told_at_create(reducing, enough) == []


async def test_reducers_that_will_idle_are_a_warning(reducing: House) -> None:
    """spec/reduction#reports: a runtime that cannot use them tells so itself."""
    asked = job(SKLEARN, 4)
    said = await told_at_create(reducing, asked)
    assert [
        text for text in said if "Only a program that calls trainshed_reduction.allreduce" in text
    ]
    assert await told_before(reducing, asked) == said
