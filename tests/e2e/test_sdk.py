"""The Vertex SDK, unmodified, over REST (spec/clients#recipes): submit, run, package a script, list, cancel,
delete."""

import importlib
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.nursery import look_often
from tests.e2e.running import PROJECT, REGION, SKLEARN, Service, common_place
from trainshed.buckets.callers import address_with_key

BUCKET = "trainshed"


@pytest.fixture(scope="module")
def sdk(service: Service) -> Iterator[Any]:
    """`google.cloud.aiplatform` in this process."""
    with pytest.MonkeyPatch.context() as patch:
        # Read by google-cloud-storage, which the SDK uploads scripts with.
        storage = address_with_key(str(service.extra["storage"]), service.token)
        patch.setenv("STORAGE_EMULATOR_HOST", storage)
        patch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
        patch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        module: Any = importlib.import_module("google.cloud.aiplatform")
        credentials: Any = importlib.import_module("google.oauth2.credentials")
        look_often()
        module.init(
            project=PROJECT,
            location=REGION,
            api_endpoint=service.rest,
            api_transport="rest",
            credentials=credentials.Credentials(service.token),
            staging_bucket=f"gs://{BUCKET}",
        )
        yield module


@pytest.fixture(scope="module")
def errors() -> Any:
    return importlib.import_module("google.api_core.exceptions")


def _pools(script: str, *, replicas: int = 1, image: str = SKLEARN) -> list[dict[str, Any]]:
    return [
        {
            "machine_spec": {"machine_type": "n1-standard-4"},
            "replica_count": replicas,
            "container_spec": {"image_uri": image, "command": ["python3", "-c", script]},
        }
    ]


def _id(job: Any) -> str:
    return job.resource_name.rsplit("/", 1)[1]


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


class Runs:
    """Three `run`s at once."""

    def __init__(self, sdk: Any, scratch: Path) -> None:
        wheel = _wheel(common_place())
        script = scratch / "train.py"
        script.write_text(_SCRIPT)
        output = f"gs://{BUCKET}/sdk-output"
        self.good = sdk.CustomJob(
            display_name="sdk-good",
            worker_pool_specs=_pools("import os; print(os.environ['AIP_MODEL_DIR'])"),
            base_output_dir=output,
            labels={"suite": "sdk", "kind": "good"},
        )
        self.bad = sdk.CustomJob(
            display_name="sdk-bad",
            worker_pool_specs=_pools("print('so far so good'); raise SystemExit('no data')"),
            labels={"suite": "sdk"},
        )
        self.script = sdk.CustomJob.from_local_script(
            display_name="sdk-script",
            script_path=str(script),
            container_uri=SKLEARN,
            args=["--epochs", "7"],
            requirements=["joblib>=1", f"trainshed-e2e-requirement @ {wheel.as_uri()}"],
            environment_variables={"GIVEN": "in $(CLOUD_ML_REGION)"},
            replica_count=3,
        )
        self.failure = ""
        for job in (self.good, self.bad, self.script):
            job.run(sync=False)
        for job in (self.good, self.script, self.bad):
            try:
                job.wait()
            except RuntimeError as error:
                assert job is self.bad, error
                self.failure = str(error)


def _wheel(directory: Path) -> Path:
    name, info = "trainshed_e2e_requirement", "trainshed_e2e_requirement-2.5.dist-info"
    files = {
        f"{name}.py": "__version__ = '2.5'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: trainshed-e2e-requirement\nVersion: 2.5\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    path = directory / f"{name}-2.5-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


@pytest.fixture(scope="module")
def runs(sdk: Any, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(sdk, tmp_path_factory.mktemp("sdk"))


def test_run_returns_when_the_job_has_succeeded(runs: Runs, sdk: Any, service: Service) -> None:
    job = runs.good
    assert job.state.name == "JOB_STATE_SUCCEEDED"
    assert job.error is None or not job.error.code
    assert job.create_time <= job.start_time <= job.end_time
    # baseOutputDirectory becomes AIP_MODEL_DIR (spec/program#directories).
    assert service.lines(_id(job))[-1] == f"gs://{BUCKET}/sdk-output/model/"
    again = sdk.CustomJob.get(job.resource_name)
    assert (again.display_name, again.state) == ("sdk-good", job.state)
    assert dict(again.labels) == {"suite": "sdk", "kind": "good"}
    assert job.resource_name == f"projects/{PROJECT}/locations/{REGION}/customJobs/{_id(job)}"


def test_the_package_of_the_newest_name_is_the_same_sdk(runs: Runs, sdk: Any) -> None:
    """The SDK's wheel also ships `agentplatform` (Gemini Enterprise Agent Platform, formerly Vertex AI)."""
    platform: Any = importlib.import_module("agentplatform")
    resources: Any = importlib.import_module("agentplatform.resources")
    assert (platform.init, resources.CustomJob) == (sdk.init, sdk.CustomJob)
    again = resources.CustomJob.get(runs.good.resource_name)
    assert (again.display_name, again.state.name) == ("sdk-good", "JOB_STATE_SUCCEEDED")


def test_run_raises_what_the_job_failed_with(runs: Runs) -> None:
    """spec/failures#messages, facts/lifecycle#payload: the public sentence, then the last lines of the
    log."""
    assert runs.failure.startswith("Job failed with:\ncode: 3\n")
    assert runs.bad.state.name == "JOB_STATE_FAILED"
    assert runs.bad.error.code == 3
    message = runs.bad.error.message
    assert message.startswith(
        "The replica workerpool0-0 exited with a non-zero status of 1. Termination reason: Error."
    )
    assert "so far so good\nno data\n" in message


def test_a_local_script_runs_on_three_replicas(runs: Runs, service: Service) -> None:
    """spec/clients#wire: packaged by the SDK, uploaded, installed with its requirements, run as a module."""
    job = runs.script
    assert job.state.name == "JOB_STATE_SUCCEEDED"
    job_id = _id(job)
    model = job.job_spec.base_output_directory.output_uri_prefix + "/model/"
    for replica in ("workerpool0-0", "workerpool1-0", "workerpool1-1"):
        pool, index = replica.split("-")
        lines = service.lines(job_id, replica)
        (said,) = (line for line in lines if line.startswith("REPORT "))
        assert json.loads(said.removeprefix("REPORT ")) == {
            "epochs": 7,
            "place": [pool, int(index)],
            "requirement": "2.5",
            "given": f"in {REGION}",
            "model": model,
        }
    prefix = model.removeprefix(f"gs://{BUCKET}/")
    # The SDK's output directories have colons in their names.
    assert ":" in prefix
    found = service.call("GET", f"/storage/v1/b/{BUCKET}/o?prefix={prefix}")
    assert [item["name"].removeprefix(prefix) for item in found["items"]] == [
        "model.joblib",
        "reported-0",
        "reported-1",
    ]


def test_submit_then_cancel_then_delete(sdk: Any, errors: Any, service: Service) -> None:
    """spec/lifecycle#cancel: cancel ends in CANCELLED with code 1; a running job cannot be deleted, a
    finished one can."""
    job = sdk.CustomJob(
        display_name="sdk-long", worker_pool_specs=_pools("import time; time.sleep(600)")
    )
    job.submit()
    for view in service.watch(_id(job)):
        if view["state"] == "RUNNING":
            break
    assert job.state.name == "JOB_STATE_RUNNING"
    with pytest.raises(errors.GoogleAPICallError, match="cancel"):
        job.delete()
    job.cancel()
    service.finish(_id(job))
    assert job.state.name == "JOB_STATE_CANCELLED"
    assert job.error.code == 1
    with pytest.raises(errors.GoogleAPICallError, match="CANCELLED"):
        job.cancel()
    # Waits for the operation below /ui/.
    job.delete()
    with pytest.raises(errors.NotFound):
        sdk.CustomJob.get(job.resource_name)
