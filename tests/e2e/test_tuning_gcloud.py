"""`gcloud ai-platform jobs submit training` with hyperparameters, unmodified (spec/tuning#parameters,
spec/clients#recipes)."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.e2e.conftest import RUNTIME_VERSION
from tests.e2e.gcloud import Gcloud, needs_gcloud
from tests.e2e.running import PROJECT, REGION, Service
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
"""
"""Trial 3 is the best one. Trial 6 is far behind, and goes on until it is stopped."""

_ML_CONFIG = """
trainingInput:
  scaleTier: BASIC
  hyperparameters:
    goal: MINIMIZE
    hyperparameterMetricTag: loss
    maxTrials: 7
    maxParallelTrials: 2
    enableTrialEarlyStopping: true
    params:
    - {parameterName: rate, type: DOUBLE, minValue: 0.0001, maxValue: 0.1, scaleType: UNIT_LOG_SCALE}
    - {parameterName: units, type: DISCRETE, discreteValues: [16, 32, 64]}
    - {parameterName: optimizer, type: CATEGORICAL, categoricalValues: [sgd, adam]}
"""


def test_submit_training_tunes(service: Service, tmp_path: Path) -> None:
    """spec/tuning#early-stopping, facts/resources#ml, facts/program#arguments: trials best first, `--name
    value`, a job directory for each, early stopping."""
    gcloud = Gcloud(service, tmp_path / "gcloud")
    trainer, config = tmp_path / "trainer", tmp_path / "config.yaml"
    trainer.mkdir()
    (trainer / "__init__.py").touch()
    (trainer / "tune.py").write_text(_ML_TASK)
    config.write_text(_ML_CONFIG)
    submission = (
        *(*ML, "submit", "training", "tuned", "--region", REGION, *RUNTIME_VERSION),
        "--stream-logs",
        *("--package-path", str(trainer), "--module-name", "trainer.tune"),
        *("--config", str(config), "--job-dir", f"gs://{BUCKET}/tuned", "--", "--epochs", "4"),
    )
    # gcloud itself looks every ten seconds whether a job is over.
    with gcloud.started(*submission) as submitted:
        for trial in range(1, 8):
            if not any(f"trial {trial} has" in line for line in submitted.lines):
                submitted.until(f"trial {trial} has", timeout=120)
    service.finish(quote(f"projects/{PROJECT}/jobs/tuned", safe=""), 120)
    # Severity, time, task, trial, message.
    rows = [line.split("\t") for line in submitted.lines if "\ttrial " in line]
    assert {fields[2] for fields in rows} == {"master-replica-0"}
    assert sorted(int(fields[3]) for fields in rows) == list(range(1, 8))
    assert all(fields[4].startswith(f"trial {fields[3]} has ") for fields in rows)

    job = json.loads(gcloud.run(*ML, "describe", "tuned", "--format=json").stdout)
    output = job["trainingOutput"]
    assert output["isHyperparameterTuningJob"] is True
    assert (output["completedTrialCount"], output["hyperparameterMetricTag"]) == ("7", "loss")
    trials = output["trials"]
    assert [int(trial["trialId"]) for trial in trials] == [3, 1, 7, 2, 4, 5, 6]
    assert trials[0]["finalMetric"] == {"trainingStep": "4", "objectiveValue": 2.5}
    assert [trial.get("isTrialStoppedEarly", False) for trial in trials] == [False] * 6 + [True]
    assert {trial["state"] for trial in trials} == {"SUCCEEDED"}
    for trial in trials:
        parameters = trial["hyperparameters"]
        place = f"{BUCKET}/tuned/{trial['trialId']}"
        words = [word for name, value in parameters.items() for word in (f"--{name}", value)]
        assert set(parameters) == {"rate", "units", "optimizer"}
        assert parameters["units"] in ("16", "32", "64")
        left = json.loads((bucket(service).parent / place / "model.json").read_text())
        assert left[:2] == ["--epochs", "4"] and left[-2:] == ["--job-dir", f"gs://{place}"]
        assert sorted(left[2:-2]) == sorted(words)
