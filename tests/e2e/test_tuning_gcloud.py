"""`gcloud ai hp-tuning-jobs` and `gcloud ai-platform jobs submit training` with hyperparameters, unmodified
(spec/tuning#parameters, spec/clients#recipes)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.conftest import RUNTIME_VERSION
from tests.e2e.gcloud import Gcloud, Output, needs_gcloud
from tests.e2e.running import PROJECT, REGION, SKLEARN, Service
from tests.e2e.tuning_programs import BUCKET, TRIAL, TUNING_JOBS, bucket, until_running

pytestmark = [pytest.mark.gcloud, needs_gcloud]

JOBS = ("ai", "hp-tuning-jobs")
ML = ("ai-platform", "jobs")

_ML_TASK = """
import argparse, json, os, pathlib, sys, time
import hypertune

parser = argparse.ArgumentParser()
parser.add_argument("--job-dir")
parser.add_argument("--epochs", type=int)
parser.add_argument("--rate", type=float)
parser.add_argument("--units", type=int)
parser.add_argument("--optimizer")
args = parser.parse_args()
trial = int(os.environ["CLOUD_ML_TRIAL_ID"])
print("trial", trial, "has", json.dumps(sys.argv[1:]), flush=True)
place = pathlib.Path(args.job_dir.replace("gs://", "/gcs/"))
place.mkdir(parents=True, exist_ok=True)
(place / "model.json").write_text(json.dumps(sys.argv[1:]))
loss = {3: 0.0, 6: 100.0, 7: 1.5}.get(trial, trial)
step, tuner = 0, hypertune.HyperTune()
while step < args.epochs or trial == 6:
    step += 1
    tag = os.environ["CLOUD_ML_HP_METRIC_TAG"]
    tuner.report_hyperparameter_tuning_metric(tag, loss + 10 / step, global_step=step)
    time.sleep(0.02)
while trial > 7 and not pathlib.Path("/gcs/trainshed/gates/resumed").exists():
    time.sleep(0.02)
"""
"""Trial 3 is the best one. Trial 6 is far behind, and goes on until it is stopped. Later ones wait at a
gate."""

_ML_CONFIG = """
trainingInput:
  scaleTier: BASIC
  hyperparameters:
    goal: MINIMIZE
    hyperparameterMetricTag: loss
    maxTrials: {trials}
    maxParallelTrials: 2
    enableTrialEarlyStopping: true
    params:
    - {{parameterName: rate, type: DOUBLE, minValue: 0.0001, maxValue: 0.1, scaleType: UNIT_LOG_SCALE}}
    - {{parameterName: units, type: DISCRETE, discreteValues: [16, 32, 64]}}
    - {{parameterName: optimizer, type: CATEGORICAL, categoricalValues: [sgd, adam]}}
"""


@pytest.fixture(scope="module")
def gcloud(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Gcloud:
    return Gcloud(service, tmp_path_factory.mktemp("gcloud"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    (root / "trainer").mkdir()
    (root / "trainer" / "__init__.py").touch()
    (root / "trainer" / "tune.py").write_text(_ML_TASK)
    (root / "config.yaml").write_text(_ML_CONFIG.format(trials=7))
    resumed = _ML_CONFIG.format(trials=2) + "    resumePreviousJobId: tuned\n"
    (root / "resumed.yaml").write_text(resumed)
    return root


def submission(source: Path, job_id: str, config: str, *more: str) -> tuple[str, ...]:
    return (
        *(*ML, "submit", "training", job_id, "--region", REGION, *RUNTIME_VERSION),
        *("--package-path", str(source / "trainer"), "--module-name", "trainer.tune"),
        *("--config", str(source / config), "--job-dir", f"gs://{BUCKET}/{job_id}"),
        *(*more, "--", "--epochs", "4"),
    )


@pytest.fixture(scope="module", autouse=True)
def submitted(gcloud: Gcloud, source: Path) -> Iterator[Output]:
    """The `ml` job and the stream of its log, which goes on while the other tests run: gcloud looks every ten
    seconds whether a job is over."""
    with gcloud.started(*submission(source, "tuned", "config.yaml", "--stream-logs")) as output:
        yield output


def ref(job_id: str) -> str:
    """How paths of ours name a job of `ml` v1."""
    return quote(f"projects/{PROJECT}/jobs/{job_id}", safe="")


def open_gate(service: Service, name: str) -> None:
    service.put(BUCKET, f"gates/{name}", b"")


# --- Vertex

_SCRIPT = """
report(int(given["n"]) ** 2, 1)
print("trial", trial, "has", given, flush=True)
while not os.path.exists("/gcs/trainshed/gates/{gate}"):
    time.sleep(0.02)
"""


def config(tmp_path: Path, gate: str) -> Path:
    """A tuning job over the grid n = 1, 2, 3, whose trials wait at a gate."""
    script = TRIAL + _SCRIPT.format(gate=gate)
    container = {"imageUri": SKLEARN, "command": ["python3", "-c", script]}
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": 1,
        "containerSpec": container,
    }
    parameter = {"parameterId": "n", "integerValueSpec": {"minValue": 1, "maxValue": 3}}
    study = {"metrics": [{"metricId": "score", "goal": "MAXIMIZE"}], "parameters": [parameter]}
    path = tmp_path / "config.yaml"
    # JSON is YAML.
    path.write_text(json.dumps({"studySpec": study, "trialJobSpec": {"workerPoolSpecs": [pool]}}))
    return path


def create(gcloud: Gcloud, file: Path, *more: str) -> str:
    """Create a tuning job; its id."""
    arguments = ("create", f"--config={file}", "--format=value(name)", *more)
    return gcloud.run(*JOBS, *arguments).stdout.strip().rsplit("/", 1)[1]


def described(gcloud: Gcloud, job_id: str) -> dict[str, Any]:
    return json.loads(gcloud.run(*JOBS, "describe", job_id, "--format=json").stdout)


# What gcloud does with jobs: test_gcloud_vertex.py; a tuning job from end to end: test_tuning_sdk.py.
@pytest.mark.soak
def test_create_describe_stream_and_list(gcloud: Gcloud, service: Service, tmp_path: Path) -> None:
    """Streamed while it runs, described when it is over."""
    flags = ("--display-name=grid", "--max-trial-count=5", "--parallel-trial-count=2")
    more = ("--algorithm=grid-search", "--labels=suite=hp")
    job_id = create(gcloud, config(tmp_path, "vertex"), *flags, *more)
    with gcloud.started(*JOBS, "stream-logs", job_id, "--polling-interval=1") as output:
        for _ in range(2):
            output.until("\ttrial ")
        until_running(service, job_id)
        job = service.call("GET", f"{TUNING_JOBS}/{job_id}")
        assert job["state"] == "JOB_STATE_RUNNING"
        assert job["studySpec"]["algorithm"] == "GRID_SEARCH"
        assert (job["maxTrialCount"], job["parallelTrialCount"]) == (5, 2)
        assert [trial["state"] for trial in job["trials"]] == ["ACTIVE", "ACTIVE"]
        open_gate(service, "vertex")
        service.finish(job_id, 120)
        # It read the job's state once and never ends by itself (spec/clients#stream-logs), but shows what
        # comes.
        output.until("\ttrial ")
    streamed = sorted(line.split("\t")[-1] for line in output.lines if "\ttrial " in line)
    assert streamed == [f"trial {n} has {{'n': '{n}'}}" for n in (1, 2, 3)]
    job = described(gcloud, job_id)
    assert job["state"] == "JOB_STATE_SUCCEEDED"
    # The grid has three points, and none is tried twice.
    values = [trial["finalMeasurement"]["metrics"][0]["value"] for trial in job["trials"]]
    assert sorted(values) == [1, 4, 9]
    listed = gcloud.run(
        *JOBS, "list", "--filter=labels.suite=hp", "--format=value(displayName,state)"
    )
    assert listed.stdout.split() == ["grid", "JOB_STATE_SUCCEEDED"]


@pytest.mark.soak  # A job: test_gcloud_vertex.py; a tuning job: tests/contract/api.
def test_cancel(gcloud: Gcloud, service: Service, tmp_path: Path) -> None:
    """spec/lifecycle#cancel, spec/tuning."""
    job_id = create(
        gcloud,
        config(tmp_path, "never"),
        *("--display-name=cancelled", "--max-trial-count=3", "--parallel-trial-count=3"),
    )
    gcloud.run(*JOBS, "cancel", job_id)
    service.finish(job_id, 120)
    job = described(gcloud, job_id)
    assert (job["state"], job["error"]["code"]) == ("JOB_STATE_CANCELLED", 1)
    jobs = [service.call("GET", f"/v1/{trial['customJob']}") for trial in job.get("trials", ())]
    assert {each["state"] for each in jobs} <= {"JOB_STATE_CANCELLED"}


# How gcloud shows them: test_gcloud_vertex.py; which there are: tests/contract/api/test_tuning_jobs.py.
@pytest.mark.soak
def test_a_wrong_config_names_every_field(gcloud: Gcloud, tmp_path: Path) -> None:
    """spec/submit#refusals."""
    file = config(tmp_path, "never")
    wrong = json.loads(file.read_text())
    wrong["studySpec"]["parameters"][0]["integerValueSpec"] = {"minValue": 3, "maxValue": 1}
    wrong["studySpec"]["metrics"][0]["metricId"] = "has space"
    wrong["trialJobSpec"]["workerPoolSpecs"][0]["replicaCount"] = 2
    file.write_text(json.dumps(wrong))
    arguments = ("--display-name=wrong", "--max-trial-count=1", "--parallel-trial-count=1")
    refused = gcloud.run(*JOBS, "create", f"--config={file}", *arguments, fails=True).stderr
    for field in (
        "study_spec.parameters[0].integer_value_spec",
        "study_spec.metrics[0].metric_id",
        "trial_job_spec.worker_pool_specs[0].replica_count",
    ):
        assert f"field: {field}" in refused, (field, refused)


# --- ml v1


def described_ml(gcloud: Gcloud, job_id: str) -> dict[str, Any]:
    return json.loads(gcloud.run(*ML, "describe", job_id, "--format=json").stdout)


def test_submit_training_tunes(submitted: Output, gcloud: Gcloud, service: Service) -> None:
    """spec/tuning#early-stopping, facts/resources#ml, facts/program#arguments: trials best first, `--name
    value`, a job directory for each, early stopping."""
    submitted.until("state: SUCCEEDED", timeout=120)
    # Severity, time, task, trial, message.
    told = [line.split("\t") for line in submitted.lines if "\ttrial " in line]
    assert {fields[2] for fields in told} == {"master-replica-0"}
    assert sorted(int(fields[3]) for fields in told) == list(range(1, 8))
    assert all(fields[4].startswith(f"trial {fields[3]} has ") for fields in told)

    job = described_ml(gcloud, "tuned")
    output = job["trainingOutput"]
    assert output["isHyperparameterTuningJob"] is True
    assert (output["completedTrialCount"], output["hyperparameterMetricTag"]) == ("7", "loss")
    trials = output["trials"]
    assert [int(trial["trialId"]) for trial in trials] == [3, 1, 7, 2, 4, 5, 6]
    assert trials[0]["finalMetric"] == {"trainingStep": "4", "objectiveValue": 2.5}
    assert [trial.get("isTrialStoppedEarly", False) for trial in trials] == [False] * 6 + [True]
    assert {trial["state"] for trial in trials} == {"SUCCEEDED"}
    for trial in trials:
        given = trial["hyperparameters"]
        place = f"{BUCKET}/tuned/{trial['trialId']}"
        words = [word for name, value in given.items() for word in (f"--{name}", value)]
        assert set(given) == {"rate", "units", "optimizer"}
        assert given["units"] in ("16", "32", "64")
        left = json.loads((bucket(service).parent / place / "model.json").read_text())
        assert left[:2] == ["--epochs", "4"] and left[-2:] == ["--job-dir", f"gs://{place}"]
        assert sorted(left[2:-2]) == sorted(words)


@pytest.mark.soak  # For all clients: tests/contract/api/test_ml_tuning.py.
def test_resume_goes_on_where_another_job_ended(
    submitted: Output, gcloud: Gcloud, service: Service, source: Path
) -> None:
    """facts/tuning#ml: the trials of the previous job count as past; described while it runs."""
    service.finish(ref("tuned"), 120)
    gcloud.run(*submission(source, "resumed", "resumed.yaml"))
    until_running(service, ref("resumed"))
    job = described_ml(gcloud, "resumed")
    assert job["state"] == "RUNNING"
    assert [trial["trialId"] for trial in job["trainingOutput"]["trials"]] == ["8", "9"]
    open_gate(service, "resumed")
    service.finish(ref("resumed"), 120)
    job = described_ml(gcloud, "resumed")
    assert job["state"] == "SUCCEEDED"
    assert job["trainingOutput"]["completedTrialCount"] == "2"
    # A search that knows nothing begins in the middle; this one knows that it was there.
    tried = {
        trial["trialId"]: trial["hyperparameters"]
        for ended in (described_ml(gcloud, "tuned"), job)
        for trial in ended["trainingOutput"]["trials"]
    }
    assert sorted(tried) == [str(number) for number in range(1, 10)]
    assert tried["1"] not in (tried["8"], tried["9"])
