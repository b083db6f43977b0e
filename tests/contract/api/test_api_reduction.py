"""What a job's reducers and workers say of its reduction, over a real store and real files
(spec/reduction#reports)."""

from typing import Any

import pytest

from tests.contract.api.house import LOCATION, SECOND, START, House
from tests.unit.specs_requests import REDUCER, ReducingRuntimes, container, custom_job, pool
from trainshed.core.lifecycle.events import PauseOver
from trainshed.core.lifecycle.replica_events import ReplicaNoted
from trainshed.core.names import ReplicaId

NAME = "projects/p1/locations/us-central1/customJobs/1000"
JOB = "/trainshed/v1/jobs/1000"
GATHERED = PauseOver(START + 3600 * SECOND)
"""Notes that are alike are waited for no longer."""
PRIMARY, WORKER, FIRST, SECOND_ONE = map(
    ReplicaId.parse, ("workerpool0-0", "workerpool1-0", "workerpool2-0", "workerpool2-1")
)


@pytest.fixture
async def house(house: House) -> House:
    """One with a job of two workers and two reducers, which runs."""
    house.serve(runtimes=ReducingRuntimes())
    await house.result("POST", f"{LOCATION}/customJobs", reduced())
    await house.run(NAME, at=START + SECOND)
    return house


def reduced(**labels: str) -> dict[str, Any]:
    reducers = container(imageUri=REDUCER) | {
        "machineSpec": {"machineType": "n1-highcpu-16"},
        "replicaCount": "2",
    }
    return custom_job(pool(), pool(), reducers) | {"labels": labels}


async def test_notes_are_on_the_timeline(house: House) -> None:
    at = START + 7 * SECOND
    note = ReplicaNoted(1, PRIMARY, 1, 1, at, "mode", "INFO", "pure: 2 reducers")
    await house.happen(NAME, note)
    bad = ReplicaNoted(1, FIRST, 1, 1, at, "late", "WARNING", "rank 1 is late")
    await house.happen(NAME, note, bad, GATHERED)
    story = (await house.result("GET", f"{JOB}/timeline"))["entries"]
    notes = [(entry["kind"], entry["message"]) for entry in story if "reduction" in entry["kind"]]
    assert notes == [
        ("reduction", "workerpool0-0: pure: 2 reducers"),
        ("reduction_warning", "workerpool2-0: rank 1 is late"),
    ]
