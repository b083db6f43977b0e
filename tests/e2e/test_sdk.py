"""The Vertex SDK, unmodified, over REST (spec/clients#recipes): submit, run, package a script, list, cancel,
delete.
"""

from typing import Any

import pytest

from tests.e2e.packages import wheel
from tests.e2e.running import PROJECT, REGION, SKLEARN, Service, common_place, json_of, seen_by_sdk
from tests.isolation import needs_view

pytestmark = needs_view
BUCKET = "trainshed"

_SCRIPT = """
import argparse, json, os, pathlib, time
import joblib, trainshed_e2e_requirement
from google.cloud import storage

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
directory = os.environ["AIP_MODEL_DIR"]
place = json.loads(os.environ["CLUSTER_SPEC"])["task"]
report = {
    "epochs": parser.parse_args().epochs,
    "place": [place["type"], place["index"]],
    "requirement": trainshed_e2e_requirement.__version__,
    "given": os.environ["GIVEN"],
    "model": directory,
}
if place["type"] == "workerpool0":
    model = pathlib.Path(directory.replace("gs://", "/gcs/"))
    model.mkdir(parents=True, exist_ok=True)
    joblib.dump({"weights": [1, 2]}, model / "model.joblib")
print("REPORT " + json.dumps(report), flush=True)
if place["type"] == "workerpool0":
    # The workers' reports are awaited: the end of the primary is theirs.
    for index in (0, 1):
        while not (model / f"reported-{index}").exists():
            time.sleep(0.02)
else:
    bucket = storage.Client().bucket("trainshed")
    name = directory.removeprefix("gs://trainshed/") + f"reported-{place['index']}"
    bucket.blob(name).upload_from_string("yes")
"""

_PROGRAM = """
import agentplatform
from agentplatform import resources
from google.api_core.exceptions import GoogleAPICallError, NotFound

image, script, wheel = arguments

def pools(text):
    container = {"image_uri": image, "command": ["python3", "-c", text]}
    machine = {"machine_type": "n1-standard-4"}
    return [{"machine_spec": machine, "replica_count": 1, "container_spec": container}]

def shown(job):
    return {
        "name": job.resource_name,
        "display_name": job.display_name,
        "state": job.state.name,
        "code": job.error.code if job.error else 0,
        "labels": dict(job.labels),
    }

def refusal(call):
    try:
        call()
    except GoogleAPICallError as error:
        return str(error)

def until(job, state):
    while job.state.name != state:
        time.sleep(0.1)

good = aiplatform.CustomJob(
    display_name="sdk-good",
    worker_pool_specs=pools("import os; print(os.environ['AIP_MODEL_DIR'])"),
    base_output_dir="gs://trainshed/sdk-output",
    labels={"suite": "sdk", "kind": "good"},
)
bad = aiplatform.CustomJob(
    display_name="sdk-bad",
    worker_pool_specs=pools("print('so far so good'); raise SystemExit('no data')"),
)
local = aiplatform.CustomJob.from_local_script(
    display_name="sdk-script",
    script_path=script,
    container_uri=image,
    args=["--epochs", "7"],
    requirements=["joblib>=1", f"trainshed-e2e-requirement @ {wheel}"],
    environment_variables={"GIVEN": "in $(CLOUD_ML_REGION)"},
    replica_count=3,
)
for job in (good, bad, local):
    job.run(sync=False)
for job in (good, local):
    job.wait()
seen = {"good": shown(good), "script": shown(local)}
seen["script"]["output"] = local.job_spec.base_output_directory.output_uri_prefix
seen["times"] = good.create_time <= good.start_time <= good.end_time
seen["again"] = shown(aiplatform.CustomJob.get(good.resource_name))
seen["same"] = (agentplatform.init, resources.CustomJob) == (aiplatform.init, aiplatform.CustomJob)
seen["newest"] = shown(resources.CustomJob.get(good.resource_name))
try:
    bad.wait()
except RuntimeError as error:
    seen["failure"] = str(error)
seen["bad"] = shown(bad) | {"message": bad.error.message}

long = aiplatform.CustomJob(display_name="long", worker_pool_specs=pools("import time; time.sleep(600)"))
long.submit()
until(long, "JOB_STATE_RUNNING")
seen["delete refused"] = refusal(long.delete)
long.cancel()
until(long, "JOB_STATE_CANCELLED")
seen["cancelled"] = shown(long)
seen["cancel refused"] = refusal(long.cancel)
long.delete()  # Waits for the operation below /ui/.
try:
    aiplatform.CustomJob.get(long.resource_name)
except NotFound:
    seen["gone"] = True
print("SEEN", json.dumps(seen))
"""


@pytest.fixture(scope="module")
def program_view(service: Service, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the program's view."""
    script = tmp_path_factory.mktemp("sdk") / "train.py"
    script.write_text(_SCRIPT)
    name = "trainshed_e2e_requirement"
    requirement = common_place() / f"{name}-2.5-py3-none-any.whl"
    requirement.write_bytes(wheel(name, "__version__ = '2.5'\n", "2.5"))
    arguments = (SKLEARN, str(script), requirement.as_uri())
    return seen_by_sdk(service, _PROGRAM, *arguments, transport="rest")


def test_sdk_run_method_returns_when_the_job_has_succeeded(
    program_view: dict[str, Any], service: Service
) -> None:
    job = program_view["good"]
    assert (job["state"], job["code"]) == ("JOB_STATE_SUCCEEDED", 0)
    assert program_view["times"]
    parent, _, job_id = job["name"].rpartition("/")
    assert parent == f"projects/{PROJECT}/locations/{REGION}/customJobs"
    # baseOutputDirectory becomes AIP_MODEL_DIR (spec/program#directories).
    assert service.lines(job_id)[-1] == f"gs://{BUCKET}/sdk-output/model/"
    assert program_view["again"] == job
    assert (job["display_name"], job["labels"]) == ("sdk-good", {"suite": "sdk", "kind": "good"})


def test_agentplatform_package_is_the_same_sdk(program_view: dict[str, Any]) -> None:
    """The SDK's wheel also ships `agentplatform` (Gemini Enterprise Agent Platform, formerly Vertex AI)."""
    assert program_view["same"]
    assert program_view["newest"] == program_view["good"]


def test_sdk_run_method_raises_the_error_of_the_job(program_view: dict[str, Any]) -> None:
    """spec/failures#messages, facts/lifecycle#payload: the public sentence, then the last lines
    of the log.
    """
    assert program_view["failure"].startswith("Job failed with:\ncode: 3\n")
    job = program_view["bad"]
    assert (job["state"], job["code"]) == ("JOB_STATE_FAILED", 3)
    assert job["message"].startswith(
        "The replica workerpool0-0 exited with a non-zero status of 1. Termination reason: Error."
    )
    assert "so far so good\nno data\n" in job["message"]


def test_local_script_runs_on_three_replicas(program_view: dict[str, Any], service: Service) -> None:
    """spec/clients#wire: packaged by the SDK, uploaded, installed with its requirements, run as a module."""
    job = program_view["script"]
    assert job["state"] == "JOB_STATE_SUCCEEDED"
    model = job["output"] + "/model/"
    for replica in ("workerpool0-0", "workerpool1-0", "workerpool1-1"):
        pool, index = replica.split("-")
        lines = service.lines(job["name"].rsplit("/", 1)[1], replica)
        assert json_of(lines, "REPORT") == {
            "epochs": 7,
            "place": [pool, int(index)],
            "requirement": "2.5",
            "given": f"in {REGION}",
            "model": model,
        }
    prefix = model.removeprefix(f"gs://{BUCKET}/")
    # The SDK's output directories contain colons.
    assert ":" in prefix
    listed = service.call("GET", f"/storage/v1/b/{BUCKET}/o?prefix={prefix}")
    assert [item["name"].removeprefix(prefix) for item in listed["items"]] == [
        "model.joblib",
        "reported-0",
        "reported-1",
    ]


def test_submitted_job_is_cancelled_and_deleted(program_view: dict[str, Any]) -> None:
    """spec/lifecycle#cancel: a cancel ends in CANCELLED with code 1. A running job cannot be deleted, a
    finished one can.
    """
    assert "cancel" in program_view["delete refused"]
    assert program_view["cancelled"]["code"] == 1
    assert "CANCELLED" in program_view["cancel refused"]
    assert program_view["gone"]
