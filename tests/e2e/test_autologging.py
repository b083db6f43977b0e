"""The Vertex SDK's `enable_autolog`: MLflow is installed with the job's script, and its records of the
training become a run of the experiment (facts/experiments#autologging).
"""

from pathlib import Path

import pytest

from tests.e2e.running import Service, seen_by_sdk

_TRAINER = """
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

data, labels = load_iris(return_X_y=True)
LogisticRegression(max_iter=321).fit(data, labels)
"""
_CLIENT = """
[script] = arguments
aiplatform.init(api_transport=transport, experiment="autologged")
job = aiplatform.CustomJob.from_local_script(
    display_name="autologged",
    script_path=script,
    container_uri="us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
    enable_autolog=True,
)
aiplatform.start_run("named")
job.run(experiment="autologged", experiment_run="named")
aiplatform.end_run()
run = aiplatform.ExperimentRun("named", experiment="autologged")
print("SEEN", json.dumps({"params": run.get_params(), "metrics": run.get_metrics()}))
"""


@pytest.mark.runtimes
def test_autologging_records_a_script_in_its_jobs_run(service: Service, tmp_path: Path) -> None:
    trainer = tmp_path / "trainer.py"
    trainer.write_text(_TRAINER)
    seen = seen_by_sdk(service, _CLIENT, str(trainer), transport="rest", seconds=900)
    assert seen["params"]["max_iter"] == "321"
    assert seen["metrics"]["training_accuracy_score"] > 0.9
