"""`trainshed emulate` and the fixture of pytest: other people's tests against a service that does as planned
(docs/emulator.md)."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import execute
from tests.e2e import nursery, running
from tests.e2e.processes import marked, new_mark, wait_until_gone
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

def test_every_job_succeeds_at_first(trainshed_vertex):
    job = custom_job("train-7")
    job.run()
    assert job.state.name == "JOB_STATE_SUCCEEDED"
    requests = trainshed_vertex.requests()
    sent = [request["body"] for request in requests if request["path"].endswith("/customJobs")]
    [pool] = sent[0]["jobSpec"]["workerPoolSpecs"]
    assert pool["containerSpec"] == {"imageUri": "europe-docker.pkg.dev/company/train/image:7"}

def test_a_job_fails_as_planned(trainshed_vertex):
    trainshed_vertex.plan({"job": "train-*", "exit_code": 3, "prints": "ValueError: no data"}, {"job": "*"})
    job = custom_job("train-8")
    with pytest.raises(RuntimeError, match="non-zero status of 3[^|]*ValueError: no data"):
        job.run()
    assert job.state.name == "JOB_STATE_FAILED"

def test_a_job_is_refused_by_quota(trainshed_vertex):
    trainshed_vertex.plan({"job": "*", "over_quota": True})
    with pytest.raises(exceptions.ResourceExhausted, match="custom_model_training_nvidia_tesla_t4_gpus"):
        custom_job("train-9").submit()

def test_a_pipeline_leaves_its_model(trainshed_vertex):
    trainshed_vertex.plan({"job": "*"})
    job = aiplatform.CustomContainerTrainingJob(
        display_name="churn",
        container_uri="company/train:7",
        model_serving_container_image_uri="company/serve:7",
    )
    model = job.run(model_display_name="churn", machine_type="n1-standard-4")
    assert model.display_name == "churn"

@pytest.mark.parametrize(("metrics", "value"), [({"accuracy": 0.5}, 0.5), ({}, 0)])
def test_trials_measure_as_planned(trainshed_vertex, metrics, value):
    trainshed_vertex.plan({"job": "*", "metrics": metrics})
    tuning = aiplatform.HyperparameterTuningJob(
        display_name="sweep",
        custom_job=custom_job("trial"),
        metric_spec={"accuracy": "maximize"},
        parameter_spec={"lr": hpt.DoubleParameterSpec(min=0.1, max=1, scale="linear")},
        max_trial_count=2,
        parallel_trial_count=2,
    )
    tuning.run()
    assert [trial.final_measurement.metrics[0].value for trial in tuning.trials] == [value, value]
"""


def test_a_users_tests_run_against_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_training.py").write_text(running.KEPT_CHANNEL + TESTS)
    words = ["-m", "pytest", "-p", "trainshed.cli.pytest_plugin", "--basetemp=files", "."]
    variables = environment(tmp_path / "unused") | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = nursery.sdk_programs().run(words, variables, cwd=tmp_path, seconds=600)
    assert run.returncode == 0, run.stdout.decode()
    assert b"6 passed" in run.stdout


def test_the_plug_in_loads_nothing_in_other_peoples_pytest() -> None:
    heavy = {"click", "msgspec", "trainshed.core"}
    script = f"import sys, trainshed.cli.pytest_plugin; print({heavy} & {{*sys.modules}})"
    run = execute(sys.executable, "-c", script, check=True)
    assert run.stdout == "set()\n"


def emulating(
    place: Path, *words: str, **env: str
) -> AbstractContextManager["subprocess.Popen[str]"]:
    return running.beginning(place, "emulate", "--port", "0", *words, **env)


def address_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return next(
        line.strip().removeprefix("export TRAINSHED_ENDPOINT=")
        for line in process.stdout
        if line.startswith("export TRAINSHED_ENDPOINT=")
    )


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The address of another emulator."""
    with emulating(tmp_path_factory.mktemp("elsewhere")) as process:
        yield address_of(process)


def create(address: str, body: Any, **headers: str) -> tuple[int, Any]:
    """Create a job without credentials; the answer's status and JSON."""
    request = urllib.request.Request(address + JOBS, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)


def job(*program: str, name: str = "j") -> dict[str, Any]:
    container = {"imageUri": SKLEARN, "command": list(program)}
    return custom_job(worker_pool(containerSpec=container), name=name)


@pytest.mark.usefixtures("elsewhere")
def test_a_program_finds_its_emulator_and_its_status_is_the_commands(tmp_path: Path) -> None:
    """Beside another emulator; without a password; the job without a rule really runs."""
    (tmp_path / "plan.json").write_text('[{"job": "never"}]')
    script = f"""import os, urllib.request as client
listing, reading = "{JOBS}?page_size=9", "/v2/entries:list"
for path, body in ((listing, None), (reading, b'{{"resourceNames": ["projects/p"]}}')):
    print(client.urlopen(os.environ["TRAINSHED_ENDPOINT"] + path, body).read().decode(), end="")
raise SystemExit(7)"""
    words = ("--plan", "plan.json", "--capture", "sent.jsonl", "--", sys.executable, "-c", script)
    with emulating(tmp_path, *words) as process:
        printed, errors = process.communicate(timeout=60)
        assert (process.returncode, printed) == (7, "{}{}"), errors
    sent, log_read = map(json.loads, (tmp_path / "sent.jsonl").read_text().splitlines())
    assert log_read["body"] == {"resourceNames": ["projects/p"]}
    assert sent == {"method": "GET", "path": JOBS, "query": {"pageSize": 9}, "body": {}}
    assert list((tmp_path / "tmp").iterdir()) == []


def test_what_a_plan_cannot_say_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('[{"job": "a", "exit_code": 1000}]')
    with emulating(tmp_path, "--plan", "plan.json") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "`int` <= 255 - at `$[0].exit_code`" in errors
    assert 'such as [{"job": "train-*", "exit_code": 1}]' in errors


def test_a_request_that_cannot_be_written_down_is_refused(tmp_path: Path) -> None:
    with emulating(tmp_path, "--capture", "/dev/full") as process:
        status, answer = create(address_of(process), job("true"))
    assert (status, answer["error"]["status"]) == (400, "FAILED_PRECONDITION")
    assert "--capture /dev/full: No space left on device." in answer["error"]["message"]


def test_a_strangers_page_has_no_program_run(elsewhere: str) -> None:
    for origin in ("https://example.org", "null", "http://localhost:9"):
        assert create(elsewhere, job("true"), Origin=origin)[0] == 403
    assert create(elsewhere, job("true"), Host="example.org")[0] == 421
    assert create(elsewhere, job("true"), Authorization="Bearer of-google")[0] == 200


@pytest.mark.parametrize("victim", ["command", "service"])
def test_after_sigkill_neither_processes_nor_files_are_left(tmp_path: Path, victim: str) -> None:
    mark = new_mark()
    with emulating(tmp_path, MARK=mark) as process:
        address = address_of(process)
        assert process.stdout is not None
        [service] = [int(line.rpartition("=")[2]) for line in process.stdout if "_PID=" in line]
        status, made = create(address, job("sh", "-c", "sleep 300", mark))
        assert status == 200 and made["state"] == "JOB_STATE_QUEUED"
        watch = f"{address}/trainshed/v1/jobs/{made['name'].rpartition('/')[2]}/watch"
        with urllib.request.urlopen(watch, timeout=60) as lines:
            assert any(b'"RUNNING"' in line for line in lines)
        others = marked(mark)
        os.kill(process.pid if victim == "command" else service, signal.SIGKILL)
        wait_until_gone(others, seconds=60)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_action_gives_its_variables_to_later_steps(tmp_path: Path) -> None:
    """As GitHub's runner does; the installation is that of `test_install.py`."""
    [step] = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    (tmp_path / "trainshed/bin").mkdir(parents=True)
    (tmp_path / "trainshed/bin/pip").symlink_to("/bin/true")
    command = tmp_path / "trainshed/bin/trainshed"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m trainshed "$@"\n')
    command.chmod(0o755)
    inputs = {"PLAN": "", "CAPTURE": f"{tmp_path}/sent.jsonl", "GITHUB_ACTION_PATH": "."}
    files = {"GITHUB_ENV": f"{tmp_path}/env", "RUNNER_TEMP": str(tmp_path)}
    script = step["run"].replace("python3 -m venv", ":")
    words = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script)
    execute(*words, env=environment(tmp_path / "unused") | inputs | files, check=True)
    lines = (tmp_path / "env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines)
    assert create(variables["TRAINSHED_ENDPOINT"], job("true"))[0] == 200
    assert (tmp_path / "sent.jsonl").read_text().count("customJobs") == 1
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(variables["TRAINSHED_ENDPOINT"] + "/mcp", timeout=60)
    os.kill(int(variables["TRAINSHED_PID"]), signal.SIGTERM)
    wait_until_gone([int(variables["TRAINSHED_PID"])], seconds=60)
