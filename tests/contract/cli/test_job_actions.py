"""`trainshed jobs cancel`, `wait`, `delete` and `retry`."""

import json
from typing import Any

import pytest

from tests.contract.cli.fake_service import JOBS, FakeService, job, job_page


@pytest.mark.parametrize(("verb", "done"), [("cancel", "is being cancelled"), ("delete", "is deleted")])
def test_command_for_several_jobs_continues_after_an_error_of_a_job(
    service: FakeService, verb: str, done: str
) -> None:
    service.on("GET", JOBS, job_page())
    service.on("GET", f"{JOBS}/7", job())
    service.on("POST", f"{JOBS}/7:cancel", {})
    service.on("DELETE", f"{JOBS}/7", {})
    result = service.cli("jobs", verb, "nope", "7")
    assert (result.exit_code, result.stdout) == (1, f"7  {done}\n")
    assert result.stderr.startswith("Error: Job 'nope' does not exist.")
    assert service.cli("jobs", verb, "7").exit_code == 0


@pytest.mark.parametrize(
    ("states", "status"),
    [(("SUCCEEDED",), 0), (("FAILED",), 1), (("CANCELLED",), 2), (("SUCCEEDED", "FAILED", "CANCELLED"), 1)],
)
def test_exit_status_of_the_wait_command_depends_on_the_results_of_the_jobs(
    service: FakeService, states: tuple[str, ...], status: int
) -> None:
    for uid, state in enumerate(states):
        service.on("GET", f"{JOBS}/{uid}", job(str(uid), state))
    result = service.cli("jobs", "wait", *map(str, range(len(states))))
    assert result.exit_code == status
    assert [row.split()[1] for row in result.stdout.splitlines()] == list(states)
    data = service.cli("jobs", "wait", *map(str, range(len(states))), "--format", "json")
    assert [over["state"] for over in json.loads(data.stdout)] == list(states)


def test_wait_command_exits_with_status_124_after_its_timeout(service: FakeService) -> None:
    service.on("GET", f"{JOBS}/6", job("6", "SUCCEEDED"))
    service.on("GET", f"{JOBS}/7", job())
    result = service.cli("jobs", "wait", "6", "7", "--timeout", "0.5")
    # On a busy machine, job 6 may not be reported as finished in time either.
    assert (result.exit_code, result.stderr.endswith(" 7\n")) == (124, True)
    assert service.cli("jobs", "wait", "6", "--timeout", "0").exit_code == 0


SPEC: dict[str, Any] = {
    "workerPoolSpecs": [{"pythonPackageSpec": {"executorImageUri": "i", "args": ["--epochs", "3"]}}],
    "baseOutputDirectory": {"outputUriPrefix": "gs://b/runs/digits-20261120-060000-000"},
}


CREATE = "/v1/projects/p/locations/us-central1/customJobs"


def test_retry_command_submits_the_same_job_again(service: FakeService) -> None:
    resource = {"name": "x", "state": "JOB_STATE_FAILED", "displayName": "digits", "jobSpec": SPEC}
    service.on("GET", f"{JOBS}/7", job("7", "FAILED", resource=resource))
    service.on("POST", CREATE, {"name": "projects/p/locations/us-central1/customJobs/8"})
    service.on("GET", f"{JOBS}/projects/p/locations/us-central1/customJobs/8", job("8"))
    again = service.cli("jobs", "retry", "7", "--format", "json")
    assert json.loads(again.stdout)["uid"] == "8"
    sent = json.loads(service.bodies("POST", CREATE)[-1])
    assert sent == {"displayName": "digits", "jobSpec": SPEC}
    service.on("GET", f"{JOBS}/7", job("7", "RUNNING", resource=resource))
    refused = service.cli("jobs", "retry", "7")
    assert (refused.exit_code, "has not finished" in refused.stderr) == (1, True)


def test_retry_of_an_ml_job_has_a_new_id(service: FakeService) -> None:
    training = {"scaleTier": "BASIC", "region": "us-east1"}
    about: dict[str, Any] = {"api": "ml", "name": "projects/p/jobs/one", "jobId": "one"}
    resource = {"jobId": "one", "trainingInput": training, "state": "FAILED"}
    service.on("GET", f"{JOBS}/one", job("7", "FAILED", resource=resource, **about))
    service.on("POST", "/v1/projects/p/jobs", {"jobId": "two"})
    service.on("GET", f"{JOBS}/projects/p/jobs/two", job("8"))
    assert service.cli("jobs", "retry", "one").exit_code == 0
    sent = json.loads(service.bodies("POST", "/v1/projects/p/jobs")[-1])
    assert sent["trainingInput"] == training
    assert sent["jobId"].startswith("one_copy")
