"""`gcloud ai hp-tuning-jobs` and `gcloud ai-platform jobs submit training` with hyperparameters, unmodified
(spec/tuning#parameters, spec/clients#recipes)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RUNTIME_VERSION
from tests.e2e.gcloud import Gcloud, Output, needs_gcloud
from tests.e2e.running import REGION, Service
from tests.e2e.tuning_programs import BUCKET, bucket

pytestmark = [pytest.mark.gcloud, needs_gcloud]

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
