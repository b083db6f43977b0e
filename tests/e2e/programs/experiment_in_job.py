"""A training program that logs to the run of its job by the Vertex SDK as it comes: nobody says where the
service is, what the run is called, or who calls. Prints what it gets, as JSON in one line `SEEN ...`."""

import json
import os
import sys
from pathlib import Path

from google.api_core import exceptions
from google.cloud import aiplatform
from sklearn.linear_model import LinearRegression

transport, project, foreign, bucket, gate = sys.argv[1:]
chosen = {"api_transport": "rest"} if transport == "rest" else {}
aiplatform.init(project=project, location="us-central1", staging_bucket=f"gs://{bucket}", **chosen)

# The run is read here: what others write from now on, this copy does not have.
aiplatform.log_params({"inside": transport})
print("READY", flush=True)
Path(gate).read_text()
aiplatform.log_metrics({"loss": 0.5})
for step in range(1, 4):
    aiplatform.log_time_series_metrics({"loss": 1.0 / step}, step=step)
aiplatform.log_classification_metrics(
    labels=["a", "b"], matrix=[[3, 1], [0, 4]], display_name="confusion"
)
model = LinearRegression().fit([[1], [2]], [3, 6])
aiplatform.log_model(model, artifact_id=f"fitted-{transport}")
with aiplatform.start_execution(
    schema_title="system.ContainerExecution", display_name="evaluate"
) as execution:
    read = aiplatform.Artifact.create(
        schema_title="system.Dataset", display_name="rows", uri=f"gs://{bucket}/rows"
    )
    execution.assign_input_artifacts([read])

logged = aiplatform.get_experiment_model(f"fitted-{transport}")
seen = {"predicted": logged.load_model().predict([[3]])[0]}
registered = logged.register_model(
    display_name=f"fitted-{transport}",
    serving_container_image_uri="us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest",
)
(found,) = aiplatform.Model.list(filter=f'display_name="fitted-{transport}"')
seen["registered"] = [found.resource_name == registered.resource_name, found.uri == logged.uri]
try:
    aiplatform.Experiment.list(project=foreign)
except exceptions.Forbidden as refused:
    seen["foreign"] = refused.code

# Another region is another host. The SDK seeks the run of the job in whatever experiment is set.
for name in ("AIP_EXPERIMENT_NAME", "AIP_EXPERIMENT_RUN_NAME"):
    del os.environ[name]
aiplatform.init(location="europe-west4", experiment=f"far-{transport}")
aiplatform.start_run("near")
aiplatform.log_metrics({"far": 1})
aiplatform.end_run()
frame = aiplatform.get_experiment_df(f"far-{transport}", include_time_series=False)
seen["far"] = list(frame["metric.far"])
print("SEEN " + json.dumps(seen))
