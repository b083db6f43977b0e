"""The unmodified SDK over REST with tuning jobs, pipelines, models and persistent resources
(spec/clients#surface, spec/clients#recipes)."""

import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api.serving import Served, sdk_of, serve
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState, PipelineState
from trainshed.core.names import JobName, JobUid, ModelName
from trainshed.core.pipelines.records import ModelVersion, Pipeline
from trainshed.core.study.records import Measurement, StudyUid, Trial, TrialState

SECOND = 10**9
POOLS = [
    {
        "machine_spec": {"machine_type": "n1-standard-4"},
        "replica_count": 1,
        "container_spec": {"image_uri": "gcr.io/p1/mine:v1", "command": ["true"]},
    }
]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serve(tmp_path) as running:
        running.house.clock = time.time_ns() - 300 * SECOND
        yield running


@pytest.fixture
def sdk(served: Served) -> Any:
    return sdk_of(served)


def test_the_sdk_reads_a_tuning_job_and_its_trials(served: Served, sdk: Any) -> None:
    """spec/tuning#trials."""
    space: Any = import_module("google.cloud.aiplatform.hyperparameter_tuning")
    job = sdk.HyperparameterTuningJob(
        display_name="tuning",
        custom_job=sdk.CustomJob(display_name="trial", worker_pool_specs=POOLS),
        metric_spec={"loss": "minimize"},
        parameter_spec={
            "rate": space.DoubleParameterSpec(min=0, max=1, scale="linear"),
            "units": space.DiscreteParameterSpec(values=[16, 32], scale=None),
        },
        max_trial_count=4,
        parallel_trial_count=2,
    )
    job.run(sync=False)
    job.wait_for_resource_creation()
    name = job.resource_name
    study = StudyUid(int(job.name))
    final = Measurement((("loss", 0.25),), 10)
    now = served.house.clock
    trial = Trial(
        study,
        1,
        TrialState.SUCCEEDED,
        (("rate", 0.5), ("units", 16.0)),
        now,
        final=final,
        job=JobUid(5),
    )
    served.play(
        served.house.become(
            name, {"trials": (trial,)}, state=JobState.SUCCEEDED, started=now, ended=now + SECOND
        )
    )
    found = sdk.HyperparameterTuningJob.get(name)
    assert found.state.name == "JOB_STATE_SUCCEEDED"
    (shown,) = found.trials
    assert {p.parameter_id: p.value for p in shown.parameters} == {"rate": 0.5, "units": 16}
    assert shown.final_measurement.metrics[0].value == 0.25
    listed = sdk.HyperparameterTuningJob.list(filter='display_name="tuning"')
    assert [each.name for each in listed] == [job.name]
    found.delete()
    assert sdk.HyperparameterTuningJob.list() == []


def test_a_pipeline_of_the_sdk_ends_in_a_model(served: Served, sdk: Any) -> None:
    """facts/packaging#measured: the inputs in the spellings that the SDK sends; run() looks at the metadata
    and the model."""
    house = served.house
    training = sdk.CustomContainerTrainingJob(
        display_name="training",
        container_uri="gcr.io/p1/mine:v1",
        command=["true"],
        model_serving_container_image_uri="gcr.io/p1/serve:v1",
    )
    training.run(
        replica_count=3,
        machine_type="n1-standard-4",
        base_output_dir="gs://bucket/out",
        args=["--steps", 10],
        environment_variables={"A": "b"},
        sync=False,
    )
    training.wait_for_resource_creation()
    name = training.resource_name
    pipeline, _ = served.play(house.store.reader.job(JobName.parse(name)))
    assert isinstance(pipeline, Pipeline)
    (child,) = served.play(house.store.reader.children(pipeline.uid))
    assert isinstance(child, Job)
    assert [pool.replica_count for pool in child.spec.pools] == [1, 2]
    draft = pipeline.spec.model
    assert draft is not None
    model = ModelName("p1", "us-central1", draft.model_id)
    version = ModelVersion(
        model,
        1,
        draft.display_name,
        draft.public_json,
        "gs://bucket/out/model",
        house.clock,
        house.clock,
        aliases=("default",),
        pipeline=name,
    )
    served.play(
        house.become(
            name,
            {"model": version},
            state=PipelineState.SUCCEEDED,
            started=house.clock,
            ended=house.clock + SECOND,
            model=f"{model}@1",
        )
    )
    found = sdk.CustomContainerTrainingJob.get(name)
    trained = found.get_model()
    assert trained.resource_name == str(model)
    assert (trained.version_id, trained.uri) == ("1", "gs://bucket/out/model")
    found.delete()


def test_models_of_the_sdk(sdk: Any) -> None:
    uploaded = sdk.Model.upload(
        display_name="model",
        serving_container_image_uri="gcr.io/p1/serve:v1",
        artifact_uri="gs://bucket/m",
        model_id="m1",
        labels={"a": "b"},
    )
    assert uploaded.resource_name.endswith("/models/m1")
    second = sdk.Model.upload(
        display_name="model",
        parent_model="m1",
        is_default_version=False,
        serving_container_image_uri="gcr.io/p1/serve:v1",
        version_aliases=["blue"],
    )
    assert second.version_id == "2"
    registry = second.versioning_registry
    assert {each.version_id for each in registry.list_versions()} == {"1", "2"}
    registry.add_version_aliases(["default"], version="2")
    assert sdk.Model("m1").version_id == "2"
    assert set(sdk.Model("m1@2").version_aliases) == {"blue", "default"}
    sdk.Model("m1").update(display_name="other", labels={"c": "d"})
    (listed,) = sdk.Model.list(filter='display_name="other"')
    assert listed.labels == {"c": "d"}
    registry.delete_version("1")
    sdk.Model("m1").delete()
    assert sdk.Model.list() == []


def test_persistent_resources_of_the_sdk(served: Served, sdk: Any) -> None:
    module: Any = import_module("google.cloud.aiplatform.persistent_resource")
    pool = {"machine_spec": {"machine_type": "n1-standard-4"}, "replica_count": 1}
    made = module.PersistentResource.create(
        persistent_resource_id="r1", resource_pools=[pool], display_name="mine"
    )
    assert made.state.name == "RUNNING"
    made.reboot()
    job = sdk.CustomJob(display_name="on it", worker_pool_specs=POOLS)
    job.submit(persistent_resource_id="r1")
    assert [each.name for each in module.PersistentResource.list()] == ["r1"]
    made.delete()
    assert module.PersistentResource.list() == []
