"""Experiments by the Vertex SDK, unmodified, over gRPC with TLS, and its differences over REST
(facts/experiments).
"""

import json

from tests.e2e.running import Service, seen_by_sdk, trainshed

_HEAD = """
experiment = f"trial-{transport}"
aiplatform.init(api_transport=transport, experiment=experiment)
"""
_LOGGED = (
    _HEAD
    + """
with aiplatform.start_run("r1"):
    aiplatform.log_params({"lr": 0.1, "depth": 3, "opt": "adam"})
    aiplatform.log_metrics({"acc": 0.5})
    aiplatform.log_metrics({"acc": 0.75, "loss": 1.5})
    for step in range(1, 6):
        aiplatform.log_time_series_metrics({"loss": 1.0 / step}, step=step)
    aiplatform.log_time_series_metrics({"loss": 0.125})
    aiplatform.log_classification_metrics(
        labels=["a", "b"], matrix=[[3, 1], [0, 4]], display_name="confusion"
    )
    with aiplatform.start_execution(
        schema_title="system.ContainerExecution", display_name="prepare"
    ) as execution:
        for kind, assign in (
            ("Dataset", execution.assign_input_artifacts),
            ("Model", execution.assign_output_artifacts),
        ):
            artifact = aiplatform.Artifact.create(
                schema_title=f"system.{kind}", display_name=kind, uri=f"gs://trainshed/{kind}"
            )
            assign([artifact])
aiplatform.start_run("r2")
aiplatform.log_metrics({"acc": 0.9})
aiplatform.end_run()
aiplatform.start_run("r1", resume=True)
aiplatform.log_metrics({"final": 7})
aiplatform.end_run()
frame = aiplatform.get_experiment_df(experiment).set_index("run_name").sort_index()
run = aiplatform.ExperimentRun("r1", experiment=experiment)
(execution,) = run.get_executions()
seen = {
    "runs": list(frame.index),
    "accuracies": list(frame["metric.acc"]),
    "state": run.state.name,
    "params": run.get_params(),
    "metrics": run.get_metrics(),
    "losses": list(run.get_time_series_data_frame()["loss"]),
    "matrix": run.get_classification_metrics()[0]["matrix"],
    "inputs": [artifact.display_name for artifact in execution.get_input_artifacts()],
    "outputs": [artifact.display_name for artifact in execution.get_output_artifacts()],
    "listed": [each.name for each in aiplatform.Experiment.list()],
}
aiplatform.Experiment(experiment).delete(delete_backing_tensorboard_runs=True)
seen["left"] = [each.name for each in aiplatform.Experiment.list()]
print('SEEN', json.dumps(seen))
"""
)
# Two writers, such as a notebook and a job, continue the same run. The job contains the run's name, and the
# run the job.
_SHARED = (
    _HEAD
    + """
first = aiplatform.ExperimentRun.create("both", experiment=experiment)
second = aiplatform.ExperimentRun("both", experiment=experiment)
for number in range(5):
    first.log_params({f"p{number}": number})
    second.log_metrics({f"m{number}": number})
again = aiplatform.ExperimentRun("both", experiment=experiment)
aiplatform.ExperimentRun.create("with-job", experiment=experiment)
pool = {
    "machine_spec": {"machine_type": "n1-standard-4"},
    "replica_count": 1,
    "container_spec": {
        "image_uri": "us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:slim",
        "command": ["sh", "-c", "echo $AIP_EXPERIMENT_NAME $AIP_EXPERIMENT_RUN_NAME"],
    },
}
job = aiplatform.CustomJob("of a run", [pool], staging_bucket="gs://trainshed")
job.submit(experiment=experiment, experiment_run="with-job")
while job.state.name != "JOB_STATE_SUCCEEDED":
    time.sleep(0.1)
run = aiplatform.ExperimentRun("with-job", experiment=experiment)
logged = [each.resource_name == job.resource_name for each in run.get_logged_custom_jobs()]
print("SEEN", json.dumps({
    "params": again.get_params(),
    "metrics": again.get_metrics(),
    "job": job.name,
    "logged": logged,
}))
"""
)


def test_values_logged_by_a_notebook_are_read_back(service: Service) -> None:
    """facts/experiments#points"""
    seen = seen_by_sdk(service, _LOGGED)
    assert seen["runs"] == ["r1", "r2"]
    assert (seen["accuracies"], seen["state"]) == ([0.75, 0.9], "COMPLETE")
    assert seen["params"] == {"lr": 0.1, "depth": 3, "opt": "adam"}
    assert seen["metrics"] == {"acc": 0.75, "loss": 1.5, "final": 7}
    assert seen["matrix"] == [[3, 1], [0, 4]]
    assert seen["losses"] == [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 0.125]
    assert (seen["inputs"], seen["outputs"]) == (["Dataset"], ["Model"])
    assert "trial-grpc" in seen["listed"]
    assert "trial-grpc" not in seen["left"]


def test_experiment_run_contains_the_values_of_several_writers_and_of_a_job(service: Service) -> None:
    """facts/experiments#etags: over REST the SDK fails at the first conflict, so conflicts do not occur;
    facts/experiments#jobs.
    """
    seen = seen_by_sdk(service, _SHARED, transport="rest")
    params, metrics = ({f"{letter}{n}": n for n in range(5)} for letter in "pm")
    assert (seen["params"], seen["metrics"]) == (params, metrics)
    assert seen["logged"] == [True]
    (line,) = service.lines(seen["job"])
    names = [name.rpartition("/")[2] for name in line.split()]
    assert names == ["trial-rest", "trial-rest-with-job"]
    words = ("experiments", "describe", "trial-rest", "--format", "json")
    described = json.loads(trainshed(*words, data=service.data).stdout)["runs"]
    (both,) = (run["metadata"] for run in described if run["displayName"] == "both")
    assert (both["_params"], both["_metrics"]) == (params, metrics)
