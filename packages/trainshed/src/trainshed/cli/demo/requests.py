"""Makes the demo's requests to the public API, and names the files of a run in its bucket. Pure."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from trainshed.cli.sdist import DEMO_MODULE, DEMO_TUNING_MODULE, Sdist
from trainshed.core.units import Nanos

DEMO_IMAGE = "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:slim"
DEMO_MACHINE = "n1-standard-4"


_TRIALS: Final = 12

_PARALLEL: Final = 4


@dataclass(frozen=True, slots=True)
class DemoPlaces:
    """The files of a run of the demo, as object names in `bucket`."""

    bucket: str
    package: str
    output: str

    @property
    def model(self) -> str:
        """The directory of the model, where the public service places it below the output directory
        (facts/program#variables)."""
        return f"{self.output}/model"

    @property
    def metrics(self) -> str:
        """The file with the accuracy."""
        return f"{self.model}/metrics.json"

    def uri(self, name: str) -> str:
        """Return the URI of an object, `gs://bucket/name`."""
        return f"gs://{self.bucket}/{name}"


def demo_places(bucket: str, sdist: Sdist, now: Nanos) -> DemoPlaces:
    """Return the places of a run that begins at `now` (ns since the epoch). All runs share the place of an
    equal package; each has an output directory of its own, so that it does not go on from the checkpoints of
    an earlier one."""
    digest = hashlib.sha256(sdist.content).hexdigest()[:16]
    moment = datetime.fromtimestamp(now // 10**9, UTC)
    return DemoPlaces(
        bucket=bucket,
        package=f"demo/packages/{digest}/{sdist.filename}",
        output=f"demo/{moment:%Y%m%d-%H%M%S}-{now % 10**9 // 10**6:03d}",
    )


def demo_request(places: DemoPlaces, workers: int, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Return the body of `customJobs.create`: a primary, `workers` workers and an evaluator. `arguments`: the
    program's."""
    program = {"args": list(arguments)} if arguments else {}

    def pool(replicas: int) -> dict[str, Any]:
        if not replicas:
            return {}
        return {
            "machineSpec": {"machineType": DEMO_MACHINE},
            "replicaCount": str(replicas),
            "pythonPackageSpec": {
                "executorImageUri": DEMO_IMAGE,
                "packageUris": [places.uri(places.package)],
                "pythonModule": DEMO_MODULE,
                **program,
            },
        }

    return {
        "displayName": "trainshed-demo",
        "jobSpec": {
            "workerPoolSpecs": [pool(1), pool(workers), pool(0), pool(1)],
            "baseOutputDirectory": {"outputUriPrefix": places.uri(places.output)},
        },
    }


def accuracy(metrics: bytes) -> float:
    """Return the share of held-out images that are classified correctly, from the content of the demo's
    metrics file. Raises ValueError."""
    try:
        return float(json.loads(metrics)["accuracy"])
    except (KeyError, TypeError) as failure:
        raise ValueError(f"no accuracy in {metrics[:200]!r}") from failure


def tuning_request(places: DemoPlaces) -> dict[str, Any]:
    """Return the body of `hyperparameterTuningJobs.create`: a search for the hyperparameters with which a
    small network learns digits best."""
    return {
        "displayName": "trainshed-demo-tuning",
        "maxTrialCount": _TRIALS,
        "parallelTrialCount": _PARALLEL,
        "studySpec": {
            "metrics": [{"metricId": "accuracy", "goal": "MAXIMIZE"}],
            "parameters": [
                {
                    "parameterId": "learning-rate",
                    "doubleValueSpec": {"minValue": 0.0001, "maxValue": 0.3},
                    "scaleType": "UNIT_LOG_SCALE",
                },
                {
                    "parameterId": "hidden-units",
                    "integerValueSpec": {"minValue": "4", "maxValue": "64"},
                    "scaleType": "UNIT_LOG_SCALE",
                },
                {
                    "parameterId": "batch-size",
                    "discreteValueSpec": {"values": [16, 32, 64, 128]},
                },
                {
                    "parameterId": "activation",
                    "categoricalValueSpec": {"values": ["relu", "tanh", "logistic"]},
                },
            ],
        },
        "trialJobSpec": {
            "workerPoolSpecs": [
                {
                    "machineSpec": {"machineType": DEMO_MACHINE},
                    "replicaCount": "1",
                    "pythonPackageSpec": {
                        "executorImageUri": DEMO_IMAGE,
                        "packageUris": [places.uri(places.package)],
                        "pythonModule": DEMO_TUNING_MODULE,
                    },
                }
            ],
            "baseOutputDirectory": {"outputUriPrefix": places.uri(places.output)},
        },
    }
