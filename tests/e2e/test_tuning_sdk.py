"""The Vertex SDK's HyperparameterTuningJob, unmodified, over gRPC with TLS, with a scikit-learn package
(spec/tuning#parameters).
"""

import json
from typing import Any

import pytest

from tests.e2e.packages import source_package, upload
from tests.e2e.running import SKLEARN, Service, seen_by_sdk
from tests.e2e.tuning_programs import SKLEARN_TASK, bucket
from tests.isolation import needs_view

pytestmark = needs_view
_PROGRAM = """
from google.cloud import storage
from google.cloud.aiplatform import hyperparameter_tuning as hpt

package, image, count = arguments
base, gate = "gs://trainshed/tuned/sdk", "gates/sdk"
pool = {
    "machine_spec": {"machine_type": "n1-standard-4"},
    "replica_count": 1,
    "python_package_spec": {
        "executor_image_uri": image,
        "package_uris": [package],
        "python_module": "trainer.task",
        "args": ["--gate", f"gs://trainshed/{gate}"],
    },
}
job = aiplatform.HyperparameterTuningJob(
    display_name="sdk",
    custom_job=aiplatform.CustomJob(
        display_name="trial", worker_pool_specs=[pool], base_output_dir=base
    ),
    metric_spec={"accuracy": "maximize"},
    parameter_spec={
        "kind": hpt.CategoricalParameterSpec(
            values=["svm", "neighbours"],
            conditional_parameter_spec={
                "c": hpt.DoubleParameterSpec(0.01, 100, "log", parent_values=["svm"]),
                "tolerance": hpt.DoubleParameterSpec(0.9, 0.9999, "reverse_log", parent_values=["svm"]),
                "neighbours": hpt.IntegerParameterSpec(1, 20, "linear", parent_values=["neighbours"]),
                "leaf": hpt.IntegerParameterSpec(2, 64, "log", parent_values=["neighbours"]),
            },
        ),
        "folds": hpt.DiscreteParameterSpec([2, 3, 5], "linear"),
        "share": hpt.DoubleParameterSpec(0.5, 1.0, "linear"),
    },
    max_trial_count=int(count),
    parallel_trial_count=4,
    labels={"suite": "sdk"},
)
job.run(sync=False)
job.wait_for_resource_creation()
seen = {"name": job.resource_name}

# All of the first four have measured something and wait at the gate: so the job runs while it is looked at.
deadline = time.monotonic() + 90
while True:
    trials = job.trials
    if len(trials) == 4 and all(trial.measurements for trial in trials):
        break
    assert time.monotonic() < deadline, trials
    time.sleep(0.2)
seen["running"] = [job.state.name, [trial.state.name for trial in trials]]
client = storage.Client(project="trainshed", credentials=Credentials(token))
client.bucket("trainshed").blob(gate).upload_from_string("")

job.wait()
seen["state"] = job.state.name
seen["trials"] = [
    {
        "id": trial.id,
        "state": trial.state.name,
        "given": {parameter.parameter_id: parameter.value for parameter in trial.parameters},
        "measured": [metric.value for each in trial.measurements for metric in each.metrics],
        "final": [(metric.metric_id, metric.value) for metric in trial.final_measurement.metrics],
        "step": trial.final_measurement.step_count,
        "times": [trial.start_time.timestamp(), trial.end_time.timestamp()],
        "job": aiplatform.CustomJob.get(trial.custom_job).state.name,
        "job_name": trial.custom_job,
    }
    for trial in job.trials
]
again = aiplatform.HyperparameterTuningJob.get(job.resource_name)
seen["again"] = [again.display_name, again.state.name, len(again.trials)]
wanted = 'labels.suite=sdk AND state="JOB_STATE_SUCCEEDED"'
found = aiplatform.HyperparameterTuningJob.list(filter=wanted)
seen["listed"] = [each.display_name for each in found]
print("SEEN " + json.dumps(seen))
"""

TRIALS = 5
"""More than the number of parallel trials."""
_CONDITIONAL = {"svm": {"c", "tolerance"}, "neighbours": {"neighbours", "leaf"}}


@pytest.fixture(scope="module")
def ran(service: Service) -> dict[str, Any]:
    """Return the program's view."""
    package = upload(service, "tuning/pkg-1.0.tar.gz", source_package(SKLEARN_TASK))
    return seen_by_sdk(service, _PROGRAM, package, SKLEARN, str(TRIALS))


def test_sdk_run_method_returns_when_all_trials_have_finished(ran: dict[str, Any]) -> None:
    """Four trials at a time, and the job can be read while it runs."""
    assert ran["running"] == ["JOB_STATE_RUNNING", ["ACTIVE"] * 4]
    assert ran["state"] == "JOB_STATE_SUCCEEDED"
    assert [trial["id"] for trial in ran["trials"]] == [str(n) for n in range(1, TRIALS + 1)]
    for trial in ran["trials"]:
        values = dict(trial["given"])
        # A conditional parameter occurs only with its parent's value.
        assert set(values) == {"kind", "folds", "share"} | _CONDITIONAL[values["kind"]]
        assert trial["state"] == "SUCCEEDED" and values["folds"] in (2, 3, 5)
    assert ran["again"] == ["sdk", "JOB_STATE_SUCCEEDED", TRIALS]
    assert ran["listed"] == ["sdk"]


def test_each_trial_is_a_job_with_its_parameters_and_its_directory(
    ran: dict[str, Any], service: Service
) -> None:
    """spec/program#directories, spec/tuning#trials, facts/program#variables, facts/program#arguments: `--name
    value`, AIP_MODEL_DIR below the trial's number, a CustomJob each.
    """
    trials = ran["trials"]
    assert len({trial["job_name"] for trial in trials}) == TRIALS
    assert {trial["job"] for trial in trials} == {"JOB_STATE_SUCCEEDED"}
    for trial in trials:
        directory = bucket(service) / "tuned" / "sdk" / trial["id"] / "model"
        assert (directory / "model.joblib").stat().st_size
        report = json.loads((directory / "report.json").read_text())
        assert report["trial"] == trial["id"]
        assert report["given"] == pytest.approx(trial["given"])
        # Every measurement exists, and the best one counts, as the SDK requests.
        assert trial["measured"] == pytest.approx(report["scores"])
        assert trial["final"] == [["accuracy", pytest.approx(max(report["scores"]))]]
        assert trial["step"] == report["scores"].index(max(report["scores"])) + 1
