"""The Vertex SDK's `enable_autolog`: MLflow is installed beside the job's script, and what it sees of the
training becomes a run of the experiment (facts/experiments#autologging)."""

from pathlib import Path

import pytest

from tests.e2e.running import Service, given_by_env, seen_by

_TRAINER = """
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

data, labels = load_iris(return_X_y=True)
LogisticRegression(max_iter=321).fit(data, labels)
"""
_CLIENT = """
import json, sys
from google.cloud import aiplatform
from google.oauth2.credentials import Credentials

endpoint, token, script = sys.argv[1:]
aiplatform.init(
    project="trainshed",
    location="us-central1",
    api_endpoint=endpoint,
    api_transport="rest",
    credentials=Credentials(token),
    experiment="autologged",
    staging_bucket="gs://trainshed",
)
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
def test_a_scripts_training_is_logged_to_the_run_of_its_job(
    service: Service, tmp_path: Path
) -> None:
    client, trainer = tmp_path / "client.py", tmp_path / "trainer.py"
    client.write_text(_CLIENT)
    trainer.write_text(_TRAINER)
    variables = given_by_env(service)
    arguments = (service.rest, service.token, str(trainer))
    seen = seen_by(client, *arguments, variables=variables, seconds=900)
    assert seen["params"]["max_iter"] == "321"
    assert seen["metrics"]["training_accuracy_score"] > 0.9
