"""`trainshed emulate` and the pytest fixture: other projects' tests against a service that behaves as planned
(docs/emulator.md). `tests/contract/api/test_emulation.py` tests failing plans and captures,
`tests/contract/cli/test_temporary_service.py` a killed service and programs.
"""

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import execute
from tests.e2e import fork_server, running
from tests.e2e.processes import find_marked, new_mark, wait_until_gone
from tests.e2e.running import ROOT, SKLEARN, custom_job, environment, worker_pool

pytestmark = pytest.mark.e2e

JOBS = "/v1/projects/p/locations/us-central1/customJobs"
TESTS = """
import os
import pytest
import yaml
from google.api_core import exceptions
from google.cloud import aiplatform
from google.cloud.aiplatform import hyperparameter_tuning as hpt

aiplatform.base.logging.disable()
POOL = {
    "machine_spec": {
        "machine_type": "n1-standard-4",
        "accelerator_type": "NVIDIA_TESLA_T4",
        "accelerator_count": 1,
    },
    "replica_count": 1,
    "container_spec": {"image_uri": "europe-docker.pkg.dev/company/train/image:7"},
}

@pytest.fixture(autouse=True)
def sdk(trainshed_vertex):
    aiplatform.init(
        api_endpoint=os.environ["TRAINSHED_GRPC_ENDPOINT"],
        api_transport="grpc",
        staging_bucket="gs://company-staging",
    )

def custom_job(name):
    return aiplatform.CustomJob(display_name=name, worker_pool_specs=[POOL])

def test_job_without_a_plan_succeeds(trainshed_vertex):
    job = custom_job("train-7")
    job.run()
    assert job.state.name == "JOB_STATE_SUCCEEDED"
    requests = trainshed_vertex.requests()
    sent = [request["body"] for request in requests if request["path"].endswith("/customJobs")]
    [pool] = sent[0]["jobSpec"]["workerPoolSpecs"]
    assert pool["containerSpec"] == {"imageUri": "europe-docker.pkg.dev/company/train/image:7"}

def test_emulated_job_fails_as_its_plan_specifies(trainshed_vertex):
    trainshed_vertex.plan({"job": "train-*", "exit_code": 3, "prints": "ValueError: no data"}, {"job": "*"})
    job = custom_job("train-8")
    with pytest.raises(RuntimeError, match="non-zero status of 3[^|]*ValueError: no data"):
        job.run()
    assert job.state.name == "JOB_STATE_FAILED"

def test_planned_quota_rejects_a_job(trainshed_vertex):
    trainshed_vertex.plan({"job": "*", "over_quota": True})
    with pytest.raises(exceptions.ResourceExhausted, match="custom_model_training_nvidia_tesla_t4_gpus"):
        custom_job("train-9").submit()

def test_emulated_pipeline_registers_its_model(trainshed_vertex):
    trainshed_vertex.plan({"job": "*"})
    job = aiplatform.CustomContainerTrainingJob(
        display_name="churn",
        container_uri="company/train:7",
        model_serving_container_image_uri="company/serve:7",
    )
    model = job.run(model_display_name="churn", machine_type="n1-standard-4")
    assert model.display_name == "churn"

def test_trial_reports_the_planned_measurements(trainshed_vertex):
    trainshed_vertex.plan({"job": "*", "metrics": {"accuracy": 0.5}})
    tuning = aiplatform.HyperparameterTuningJob(
        display_name="sweep",
        custom_job=custom_job("trial"),
        metric_spec={"accuracy": "maximize"},
        parameter_spec={"lr": hpt.DoubleParameterSpec(min=0.1, max=1, scale="linear")},
        max_trial_count=1,
        parallel_trial_count=1,
    )
    tuning.run()
    [trial] = tuning.trials
    assert trial.final_measurement.metrics[0].value == 0.5
"""


def test_tests_of_a_user_pass_with_the_pytest_fixture_of_trainshed(tmp_path: Path) -> None:
    (tmp_path / "test_training.py").write_text(running.KEPT_CHANNEL + TESTS)
    words = ["-m", "pytest", "-p", "trainshed.cli.pytest_plugin", "--basetemp=files", "."]
    variables = environment(tmp_path / "unused") | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = fork_server.sdk_programs().run(words, variables, cwd=tmp_path, seconds=600)
    assert run.returncode == 0, run.stdout.decode()
    assert b"5 passed" in run.stdout


def test_pytest_plug_in_imports_no_large_modules_in_unrelated_test_runs() -> None:
    heavy = {"click", "msgspec", "trainshed.core"}
    script = f"import sys, trainshed.cli.pytest_plugin; print({heavy} & {{*sys.modules}})"
    run = execute(sys.executable, "-c", script, check=True)
    assert run.stdout == "set()\n"


@pytest.fixture(scope="module")
def from_action(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, str]]:
    """The environment of steps after the action, as on GitHub's runner. Uses the installation of
    `test_install.py`.
    """
    place = tmp_path_factory.mktemp("runner")
    [step] = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    (place / "trainshed/bin").mkdir(parents=True)
    (place / "trainshed/bin/pip").symlink_to("/bin/true")
    command = place / "trainshed/bin/trainshed"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m trainshed "$@"\n')
    command.chmod(0o755)
    inputs = {"PLAN": "", "CAPTURE": f"{place}/sent.jsonl", "GITHUB_ACTION_PATH": "."}
    files = {"GITHUB_ENV": f"{place}/env", "RUNNER_TEMP": str(place)}
    script = step["run"].replace("python3 -m venv", ":")
    words = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script)
    execute(*words, env=environment(place / "unused") | inputs | files, check=True)
    lines = (place / "env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines)
    yield inputs | variables
    os.kill(int(variables["TRAINSHED_PID"]), signal.SIGTERM)
    wait_until_gone([int(variables["TRAINSHED_PID"])], seconds=60)


def create(address: str, body: Any, **headers: str) -> tuple[int, Any]:
    """Create a job without credentials; return the response's status and JSON."""
    request = urllib.request.Request(address + JOBS, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)


def job(*program: str, name: str = "j") -> dict[str, Any]:
    container = {"imageUri": SKLEARN, "command": list(program)}
    return custom_job(worker_pool(containerSpec=container), name=name)


def test_csrf_cannot_run_a_program_in_the_emulator(from_action: dict[str, str]) -> None:
    address = from_action["TRAINSHED_ENDPOINT"]
    for origin in ("https://example.org", "null", "http://localhost:9"):
        assert create(address, job("true"), Origin=origin)[0] == 403
    assert create(address, job("true"), Host="example.org")[0] == 421
    assert create(address, job("true"), Authorization="Bearer of-google")[0] == 200


@pytest.mark.usefixtures("from_action")
def test_killed_emulator_leaves_no_processes_or_files(tmp_path: Path) -> None:
    """Two emulators in parallel."""
    mark, name = new_mark(), "export TRAINSHED_ENDPOINT="
    with running.beginning(tmp_path, "emulate", "--port", "0", MARK=mark) as process:
        assert process.stdout is not None
        (address,) = (line.strip() for line in process.stdout if line.startswith(name))
        address = address.removeprefix(name)
        status, made = create(address, job("sh", "-c", "sleep 300", mark))
        assert status == 200 and made["state"] == "JOB_STATE_QUEUED"
        watch = f"{address}/trainshed/v1/jobs/{made['name'].rpartition('/')[2]}/watch"
        with urllib.request.urlopen(watch, timeout=60) as lines:
            assert any(b'"RUNNING"' in line for line in lines)
        others = find_marked(mark)
        process.kill()
        wait_until_gone(others, seconds=60)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_github_action_sets_its_variables_for_later_steps(from_action: dict[str, str]) -> None:
    address = from_action["TRAINSHED_ENDPOINT"]
    assert create(address, job("true", name="of-a-step"))[0] == 200
    assert Path(from_action["CAPTURE"]).read_text().count("of-a-step") == 1
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(f"{address}/mcp", timeout=60)
