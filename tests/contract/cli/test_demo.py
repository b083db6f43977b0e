"""`trainshed demo`: what it asks of a service that runs. How it has one of its own is proved by `run
--local`."""

import json
from typing import Any

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService, Stream, exited, job, line, replica

JOBS = "/trainshed/v1/jobs"
CREATE = "/v1/projects/p/locations/us-central1/customJobs"
NAME = "projects/p/locations/us-central1/customJobs/7"
PLAN: dict[str, Any] = {
    "api": "vertex",
    "project": "p",
    "location": "us-central1",
    "admitted": True,
    "places": [],
    "machines": [],
}


def test_it_runs_its_program_and_follows_it(trainshed: Invoke, service: FakeService) -> None:
    over = job(state="SUCCEEDED", replicas=[replica("workerpool0-0", "EXITED", exit=exited())])
    service.on("POST", "/trainshed/v1/jobs:explain", PLAN)
    service.on("POST", "/upload/storage/v1/b/b/o", {})
    service.on("GET", "/storage/v1/b/b", {"name": "b"})
    service.on("POST", CREATE, {"name": NAME})
    service.on("GET", f"{JOBS}/{NAME}", job(state="QUEUED"))
    service.on("GET", f"{JOBS}/7", over)
    service.on("GET", f"{JOBS}/7/watch", Stream([over]))
    service.on("GET", f"{JOBS}/7/logs", Stream([line("workerpool0-0", "epoch 1/30")]))
    service.on("GET", f"{JOBS}/7/timeline", {"name": NAME, "entries": []})
    result = trainshed("demo")
    assert result.exit_code == 0, result.output
    assert "epoch 1/30\n" in result.stdout
    assert "SUCCEEDED" in result.stdout
    assert "trainshed jobs describe @last" in result.stdout
    (sent,) = service.bodies("POST", CREATE)
    primary, workers = json.loads(sent)["jobSpec"]["workerPoolSpecs"]
    assert (primary["replicaCount"], workers["replicaCount"]) == ("1", "2")
    assert primary["pythonPackageSpec"]["pythonModule"] == "trainshed_program.digits"
