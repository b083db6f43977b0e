"""`trainshed run --array` and `--schedule`, and `trainshed schedules`: requests and messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import JOBS, FakeService, job

PLACE = "projects/p/locations/us-central1"
PIPELINES, SCHEDULES = f"/v1/{PLACE}/pipelineJobs", f"/v1/{PLACE}/schedules"
NAME = f"{PLACE}/pipelineJobs/run-1"
NEXT = "2026-11-21T01:00:00Z"
SCHEDULE: dict[str, Any] = {
    "name": f"{PLACE}/schedules/77",
    "displayName": "nightly",
    "state": "ACTIVE",
    "cron": "TZ=Europe/Berlin 0 2 * * *",
    "nextRunTime": NEXT,
    "startedRunCount": "4",
}
TRAIN = ("run", "--image", "a/b:1", "--output", "gs://b/out")


@pytest.fixture
def ready(service: FakeService) -> FakeService:
    plan = {"project": "p", "location": "us-central1", "admitted": True}
    service.on("POST", "/trainshed/v1/jobs:explain", plan)
    service.on("GET", "/storage/v1/b/b", {})
    service.on("POST", PIPELINES, {"name": NAME})
    service.on("POST", SCHEDULES, SCHEDULE)
    view = job("9", name=NAME, jobId="run-1", kind="pipeline_job")
    service.on("GET", f"{JOBS}/{NAME}", view)
    return service


def payload_in(pipeline_job: dict[str, Any]) -> dict[str, Any]:
    (executor,) = pipeline_job["pipelineSpec"]["deploymentSpec"]["executors"].values()
    args = executor["container"]["args"]
    return json.loads(args[args.index("--payload") + 1])


def test_array_submits_one_pipeline_job(trainshed: Invoke, ready: FakeService) -> None:
    result = trainshed(
        *(*TRAIN, "--array", "0-499%20", "--label", "team=x", "--notify", "mail"),
        *("--service-account", "a@b.c", "--", "--seed", "{index}"),
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{NAME}\n"
    (body,) = map(json.loads, ready.bodies("POST", PIPELINES))
    assert body["displayName"] == "b"
    assert body["runtimeConfig"] == {"gcsOutputDirectory": "gs://b/pipelines"}
    assert body["labels"] == {"team": "x", "trainshed-notify": "mail"}
    assert body["serviceAccount"] == "a@b.c"
    (task,) = body["pipelineSpec"]["root"]["dag"]["tasks"].values()
    assert json.loads(task["parameterIterator"]["items"]["raw"]) == list(range(500))
    assert task["iteratorPolicy"] == {"parallelismLimit": 20}
    payload = payload_in(body)
    assert payload["labels"] == {"team": "x"}
    index = "{{$.inputs.parameters['index']}}"
    spec = payload["jobSpec"]
    assert spec["workerPoolSpecs"][0]["containerSpec"]["args"] == ["--seed", index]
    assert spec["baseOutputDirectory"] == {"outputUriPrefix": f"gs://b/out/{index}"}


def test_schedule_contains_the_pipeline_job_and_shows_its_next_run(
    trainshed: Invoke, ready: FakeService
) -> None:
    result = trainshed(
        *(*TRAIN, "--schedule", "0 2 * * *", "--timezone", "Europe/Berlin"), *("--schedule-name", "nightly")
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{PLACE}/schedules/77\n"
    assert "Next run: 2026-11-21 01:00:00\nTo pause it: trainshed schedules pause 77" in result.stderr
    (body,) = map(json.loads, ready.bodies("POST", SCHEDULES))
    request = body.pop("createPipelineJobRequest")
    assert body == {
        "displayName": "nightly",
        "cron": "TZ=Europe/Berlin 0 2 * * *",
        "maxConcurrentRunCount": "1",
    }
    assert request["parent"] == PLACE
    spec = payload_in(request["pipelineJob"])["jobSpec"]
    assert spec["baseOutputDirectory"] == {"outputUriPrefix": "gs://b/out"}


def test_runs_of_a_schedule_have_their_own_directories(trainshed: Invoke, ready: FakeService) -> None:
    result = trainshed("run", "--image", "a/b:1", "--schedule", "@daily", "--array", "1,2")
    assert result.exit_code == 0, result.stderr
    (body,) = map(json.loads, ready.bodies("POST", SCHEDULES))
    assert (body["displayName"], body["cron"]) == ("b", "@daily")
    payload = payload_in(body["createPipelineJobRequest"]["pipelineJob"])
    prefix = payload["jobSpec"]["baseOutputDirectory"]["outputUriPrefix"]
    start, run, index = prefix.rsplit("/", 2)
    assert start.startswith("gs://b/runs/b-2026")
    assert (run, index) == ("{{$.pipeline_job_name}}", "{{$.inputs.parameters['index']}}")


def test_job_file_runs_as_an_array(trainshed: Invoke, ready: FakeService, tmp_path: Path) -> None:
    pool = {"replica_count": 1, "container_spec": {"image_uri": "a/b", "args": ["{index}"]}}
    file = tmp_path / "job.json"
    file.write_text(json.dumps({"display_name": "seeds", "job_spec": {"worker_pool_specs": [pool]}}))
    result = trainshed("run", "-f", str(file), "--array", "0-1")
    assert result.exit_code == 0, result.stderr
    payload = payload_in(json.loads(ready.bodies("POST", PIPELINES)[0]))
    (pool,) = payload["job_spec"]["worker_pool_specs"]
    names = [variable["name"] for variable in pool["container_spec"]["env"]]
    assert names == ["TRAINSHED_ARRAY_INDEX", "TRAINSHED_ARRAY_COUNT"]
    file.write_text(json.dumps({"trainingInput": {"region": "us-central1"}}))
    result = trainshed("run", "-f", str(file), "--array", "0-1")
    assert "run only custom jobs of Vertex AI" in result.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--array", "5-1"), "--array 5-1: the range 5-1 is empty. Write indices such as"),
        (("--array", "1", "--tune", "a=1,2"), "--array excludes --tune"),
        (("--schedule", "@daily", "--local"), "--schedule excludes --local"),
        (("--timezone", "UTC"), "--timezone needs a schedule"),
    ],
)
def test_options_that_exclude_each_other_are_rejected(
    trainshed: Invoke, words: tuple[str, ...], text: str
) -> None:
    result = trainshed(*TRAIN, *words)
    assert result.exit_code == 2
    assert text in result.stderr


def test_schedules_are_listed_paused_resumed_and_deleted(service: FakeService) -> None:
    at = f"{SCHEDULES}/77"
    last = {"scheduledRunTime": "2026-11-20T01:00:00Z"}
    service.on("GET", SCHEDULES, {"schedules": [SCHEDULE | {"lastScheduledRunResponse": last}]})
    _, row = service.cli("schedules", "list").stdout.splitlines()
    assert row.split()[:3] == ["77", "nightly", "ACTIVE"]
    assert row.endswith("2026-11-21 01:00:00  2026-11-20 01:00:00     4")
    service.on("GET", at, SCHEDULE)
    for verb in ("pause", "resume"):
        service.on("POST", f"{at}:{verb}", {})
    service.on("DELETE", at, {"done": True})
    assert service.cli("schedules", "pause", "nightly").stdout == f"{at[4:]}  is paused\n"
    result = service.cli("schedules", "resume", "77", "--catch-up")
    assert result.stdout == f"{at[4:]}  is active; next run: 2026-11-21 01:00:00\n"
    assert json.loads(service.bodies("POST", f"{at}:resume")[0]) == {"catchUp": True}
    assert service.cli("schedules", "delete", "77").stdout == "77  is deleted\n"
