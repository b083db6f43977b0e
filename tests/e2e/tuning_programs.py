"""Programs of trials and their tuning jobs, for end-to-end tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.running import PROJECT, REGION, SKLEARN, Service, worker_pool

BUCKET = "trainshed"
TUNING_JOBS = f"/v1/projects/{PROJECT}/locations/{REGION}/hyperparameterTuningJobs"

TRIAL = """
import os, sys, time
import hypertune

trial = int(os.environ["CLOUD_ML_TRIAL_ID"])
given = dict(zip((name[2:] for name in sys.argv[1::2]), sys.argv[2::2]))
tuner = hypertune.HyperTune()

def report(value, step, tag="score"):
    tuner.report_hyperparameter_tuning_metric(tag, value, global_step=step)

def run_once(place):
    # A file of its own for every run, so that a second run of a trial shows.
    directory = "/gcs/trainshed/" + place
    os.makedirs(directory, exist_ok=True)
    open(f"{directory}/{trial}.{time.time_ns()}", "x").close()
"""
"""Common prefix of trial programs. `trial`: its number. `given`: its parameters as text. `report` and
`run_once`: helpers.
"""

SKLEARN_TASK = """
import argparse, json, os, pathlib, time
import hypertune, joblib
from sklearn.datasets import load_iris
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

parser = argparse.ArgumentParser()
parser.add_argument("--gate")
parser.add_argument("--kind", choices=["svm", "neighbours"], required=True)
parser.add_argument("--c", type=float)
parser.add_argument("--tolerance", type=float)
parser.add_argument("--neighbours", type=int)
parser.add_argument("--leaf", type=int)
parser.add_argument("--folds", type=int, required=True)
parser.add_argument("--share", type=float, required=True)
args = parser.parse_args()

if args.kind == "svm":
    model = SVC(C=args.c, tol=1 - args.tolerance)
else:
    model = KNeighborsClassifier(args.neighbours, leaf_size=args.leaf)
inputs, targets = load_iris(return_X_y=True)
keep = slice(None, None, max(1, round(1 / args.share)))
scores = cross_val_score(model, inputs[keep], targets[keep], cv=args.folds)
tuner = hypertune.HyperTune()
for step, score in enumerate(scores, 1):
    tuner.report_hyperparameter_tuning_metric("accuracy", score, global_step=step)
gate = pathlib.Path(args.gate.replace("gs://", "/gcs/"))
while not gate.exists():
    time.sleep(0.02)
directory = pathlib.Path(os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/"))
directory.mkdir(parents=True, exist_ok=True)
joblib.dump(model.fit(inputs, targets), directory / "model.joblib")
told = {name: value for name, value in vars(args).items() if value is not None and name != "gate"}
report = {"trial": os.environ["CLOUD_ML_TRIAL_ID"], "given": told, "scores": list(scores)}
(directory / "report.json").write_text(json.dumps(report))
"""
"""A classifier chosen and fitted by scikit-learn, with parameters of every type and scale, some conditional
on the model. It reports a score per fold, waits for the object `--gate`, and saves its model with a report.
"""


def double(name: str, low: float = 0.0, high: float = 1.0, scale: str = "LINEAR") -> dict[str, Any]:
    return {
        "parameterId": name,
        "doubleValueSpec": {"minValue": low, "maxValue": high},
        "scaleType": f"UNIT_{scale}_SCALE",
    }


def study_spec(*parameters: dict[str, Any], goal: str = "MAXIMIZE", **more: Any) -> dict[str, Any]:
    """A study of one metric, `score`."""
    return {
        "metrics": [{"metricId": "score", "goal": goal}],
        "parameters": list(parameters or (double("x"),)),
        **more,
    }


def tuning_job(
    script: str,
    *,
    trials: int,
    parallel: int = 1,
    pools: Sequence[int] = (1,),
    study: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A tuning job whose trials run `TRIAL` and then `script` in the scikit-learn image."""
    container = {"imageUri": SKLEARN, "command": ["python3", "-c", TRIAL + script]}
    return {
        "displayName": "tuning",
        "studySpec": study or study_spec(),
        "maxTrialCount": trials,
        "parallelTrialCount": parallel,
        "trialJobSpec": {"workerPoolSpecs": [worker_pool(count, containerSpec=container) for count in pools]},
        **more,
    }


def final(trial: dict[str, Any]) -> float:
    """Return the metric of a finished trial. JSON omits a zero."""
    (metric,) = trial["finalMeasurement"]["metrics"]
    return metric.get("value", 0.0)


def bucket(service: Service) -> Path:
    """Return the directory of the default bucket's objects."""
    return Path(service.extra["buckets"]) / BUCKET
