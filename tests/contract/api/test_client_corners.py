"""What the unmodified clients send besides the ordinary, and what they make of the answers: every strategy of
scheduling, methods that are not served."""

import itertools
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api.serving import Served, sdk_of, serve
from tests.unit.specs_requests import SKLEARN

STRATEGIES = (None, "ON_DEMAND", "LOW_COST", "STANDARD", "SPOT", "FLEX_START")
WAITS = (None, 0, 1800)
L4 = {"machine_type": "g2-standard-4", "accelerator_type": "NVIDIA_L4", "accelerator_count": 1}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serve(tmp_path) as running:
        yield running


@pytest.fixture
def sdk(served: Served) -> Any:
    return sdk_of(served)


def scheduling_sent(strategy: str | None, wait: int | None) -> dict[str, Any]:
    from google.cloud.aiplatform_v1.types import Scheduling

    named = None if strategy is None else Scheduling.Strategy[strategy]
    return {"scheduling_strategy": named, "max_wait_duration": wait}


def test_every_strategy_with_every_wait_of_the_sdk(sdk: Any) -> None:
    """`CustomJob.submit` sends a Scheduling message, trials one within their job."""
    pools = [
        {
            "machine_spec": L4,
            "replica_count": 1,
            "container_spec": {"image_uri": "gcr.io/p1/mine:v1", "command": ["true"]},
        }
    ]
    for strategy, wait in itertools.product(STRATEGIES, WAITS):
        job = sdk.CustomJob(display_name="any", worker_pool_specs=pools)
        job.submit(**scheduling_sent(strategy, wait))
        kept = sdk.CustomJob.get(job.resource_name).gca_resource.job_spec.scheduling
        assert kept.strategy.name == (strategy or "STRATEGY_UNSPECIFIED")
        if wait is not None:
            assert kept.max_wait_duration.total_seconds() == wait


def test_every_strategy_of_a_training_pipeline(sdk: Any, served: Served) -> None:
    """There the strategy is a number within a JSON value, and a wait of 0 is not sent."""
    job = sdk.CustomPythonPackageTrainingJob(
        display_name="any",
        python_package_gcs_uri="gs://bucket/x.tar.gz",
        python_module_name="trainer.task",
        container_uri=SKLEARN,
    )
    for strategy, wait in itertools.product(STRATEGIES, WAITS):
        inputs, _ = job._prepare_training_task_inputs_and_output_dir(
            worker_pool_specs=[{"machine_spec": L4}], **scheduling_sent(strategy, wait)
        )
        assert inputs.get("scheduling") is not None or (strategy, wait or None) == (None, None)


def test_what_is_not_served_is_told_at_once_by_the_sdk(sdk: Any) -> None:
    from google.api_core.exceptions import BadRequest

    started = time.monotonic()
    with pytest.raises(BadRequest, match="trains models and does not deploy them"):
        sdk.Endpoint.create(display_name="e")
    with pytest.raises(BadRequest, match="each as a customJob"):
        sdk.PipelineJob.list()
    assert time.monotonic() - started < 10, "nothing is tried again"


def test_what_is_not_served_is_told_at_once_by_apiclient(served: Served) -> None:
    from google.api_core.client_options import ClientOptions

    ml = import_module("googleapiclient.discovery").build(
        "ml",
        "v1",
        static_discovery=True,
        client_options=ClientOptions(api_endpoint=served.url),
        credentials=import_module("google.oauth2.credentials").Credentials(served.house.token),
    )
    for asked in (
        ml.projects().models().create(parent="projects/p1", body={"name": "m"}),
        ml.projects().predict(name="projects/p1/models/m", body={}),
    ):
        with pytest.raises(import_module("googleapiclient.errors").HttpError) as caught:
            asked.execute(num_retries=3)
        refused: Any = caught.value
        assert refused.status_code == 400
        assert "does not deploy them" in refused.reason


def test_persistent_resources_of_the_sdk(served: Served, sdk: Any) -> None:
    module: Any = import_module("google.cloud.aiplatform.persistent_resource")
    pool = {"machine_spec": {"machine_type": "n1-standard-4"}, "replica_count": 1}
    made = module.PersistentResource.create(
        persistent_resource_id="r1", resource_pools=[pool], display_name="mine"
    )
    assert made.state.name == "RUNNING"
    made.reboot()
    container = {"image_uri": "gcr.io/p1/mine:v1", "command": ["true"]}
    job = sdk.CustomJob(
        display_name="on it", worker_pool_specs=[pool | {"container_spec": container}]
    )
    job.submit(persistent_resource_id="r1")
    assert [each.name for each in module.PersistentResource.list()] == ["r1"]
    made.delete()
    assert module.PersistentResource.list() == []
