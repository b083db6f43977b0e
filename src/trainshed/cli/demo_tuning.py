"""`trainshed demo --tuning`: a tuning job of the demo's program as a request to the public API. Pure."""

from typing import Any, Final

from trainshed.cli.demo_job import DEMO_IMAGE, DEMO_MACHINE, DemoPlaces
from trainshed.cli.packaging import DEMO_TUNING_MODULE

_TRIALS: Final = 12
_PARALLEL: Final = 4


def tuning_request(places: DemoPlaces) -> dict[str, Any]:
    """The body of `hyperparameterTuningJobs.create`: what a small network learns digits with best."""
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
