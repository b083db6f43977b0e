"""Vertex CustomJobs: specifications and warnings of valid jobs (spec/submit)."""

import json

import pytest

from tests.unit.specs_requests import SKLEARN, TENSORFLOW, container, custom_job, package, pool
from tests.unit.specs_vertex import parse, with_gpus
from trainshed.core.job import DEFAULT_TIMEOUT, Accelerators, Disk, Strategy
from trainshed.core.names import Api, ReplicaId


def test_discontinued_accelerator_is_accepted_with_a_warning() -> None:
    spec = parse(with_gpus("NVIDIA_TESLA_K80", 1)).spec
    assert spec.pool(0).machine.accelerators == Accelerators("NVIDIA_TESLA_K80", 1)
    (notice,) = spec.warnings
    assert notice.startswith(
        "The public services no longer offer NVIDIA_TESLA_K80. This service accepts the job"
    )
    assert not parse(with_gpus("NVIDIA_TESLA_P100", 1)).spec.warnings, "the public services still offer these"


def test_valid_vertex_job_is_parsed_with_all_fields() -> None:
    """spec/submit#vertex-jobs, spec/submit#defaults: pool positions, machines and defaults. A skipped
    position creates no pool."""
    request = custom_job(
        package(args=["--epochs", "3"], env=[{"name": "A", "value": "1"}, {"name": "B"}]),
        pool(replicaCount="3"),
        {},
        pool(diskSpec={"bootDiskType": "pd-standard", "bootDiskSizeGb": 200}),
        serviceAccount="me@p.iam.gserviceaccount.com",
        baseOutputDirectory={"outputUriPrefix": "gs://bucket/out-2026-11-20-03:24:25.811"},
    )
    request["labels"] = {"team": "größe_1", "empty": ""}
    parsed = parse(request)
    spec = parsed.spec
    assert parsed.display_name == "job"
    assert parsed.labels == (("team", "größe_1"), ("empty", ""))
    assert (spec.api, spec.region) == (Api.VERTEX, "us-central1")
    assert [p.position for p in spec.pools] == [0, 1, 3]
    assert len(spec.replicas()) == 5
    assert spec.replicas()[-1] == ReplicaId(3, 0)
    primary = spec.pool(0)
    assert primary.program.module == "trainer.task"
    assert primary.program.args == ("--epochs", "3")
    assert primary.program.env == (("A", "1"), ("B", ""))
    assert primary.program.runtime.family == "scikit-learn"
    assert (primary.machine.vcpus, primary.machine.memory_bytes) == (4, 15 * 2**30)
    assert primary.disk == Disk("pd-ssd", 100)
    assert spec.pool(3).disk == Disk("pd-standard", 200)
    assert spec.scheduling.timeout == DEFAULT_TIMEOUT
    assert spec.scheduling.max_wait is None
    assert spec.base_output_directory == "gs://bucket/out-2026-11-20-03:24:25.811"
    assert json.loads(spec.job_json) == request["jobSpec"]


@pytest.mark.parametrize(
    ("kind", "count", "machine_type"),
    [
        ("NVIDIA_TESLA_T4", 1, "n1-standard-4"),
        ("NVIDIA_TESLA_V100", 8, "n1-highmem-96"),
        ("NVIDIA_TESLA_A100", 16, "a2-megagpu-16g"),
        ("NVIDIA_L4", 4, "g2-standard-48"),
        ("NVIDIA_H100_80GB", 8, "a3-highgpu-8g"),
    ],
)
def test_accelerators_that_the_machine_type_allows_are_accepted(
    kind: str, count: int, machine_type: str
) -> None:
    """facts/machines#accelerators: valid combinations of type, count and machine type."""
    spec = parse(with_gpus(kind, count, machine_type)).spec
    assert spec.pool(0).machine.accelerators == Accelerators(kind, count)


def test_vertex_scheduling_fields_are_parsed() -> None:
    """facts/lifecycle#scheduling: 0s selects the default, and disableRetries disables restarts of the whole
    job."""
    spec = parse(
        custom_job(
            scheduling={
                "timeout": "0s",
                "restartJobOnWorkerRestart": True,
                "disableRetries": True,
                "strategy": "ON_DEMAND",
            }
        )
    ).spec
    assert spec.scheduling.timeout == DEFAULT_TIMEOUT
    assert not spec.scheduling.restart_job_on_worker_restart
    assert spec.scheduling.disable_retries
    assert spec.scheduling.strategy is Strategy.STANDARD
    assert parse(custom_job(scheduling={"timeout": "1.5s"})).spec.scheduling.timeout == 15 * 10**8
    assert parse(custom_job(scheduling={"strategy": "SPOT"})).spec.scheduling.strategy is Strategy.SPOT


def test_prebuilt_image_reads_packages_and_module_from_arguments() -> None:
    args = ["--module_name=trainer.task", "--package_uris=gs://bucket/p.tar.gz", "--epochs=3"]
    program = parse(custom_job(container(imageUri=SKLEARN, args=args))).spec.pool(0).program
    assert (program.module, program.package_uris) == ("trainer.task", ("gs://bucket/p.tar.gz",))
    assert program.args == ("--epochs=3",)


def test_workers_without_tensorflow_and_several_evaluators_cause_warnings() -> None:
    """spec/submit#warnings: workers without TensorFlow, and several evaluators."""
    assert parse(custom_job()).spec.warnings == ()
    two_workers = parse(custom_job(pool(), pool(replicaCount="2"))).spec.warnings
    assert len(two_workers) == 1
    assert "workers" in two_workers[0]
    tf = package(executorImageUri=TENSORFLOW)
    assert parse(custom_job(tf, tf, tf, tf)).spec.warnings == ()
    evaluators = parse(custom_job(tf, {}, {}, tf | {"replicaCount": "2"})).spec.warnings
    assert len(evaluators) == 1
    assert "2 evaluators" in evaluators[0]


def test_ignored_vertex_job_fields_cause_warnings() -> None:
    """The service never ignores a requested field silently."""
    request = custom_job(
        network="projects/1/global/networks/default",
        tensorboard="projects/1/locations/us-central1/tensorboards/2",
    )
    request["encryptionSpec"] = {"kmsKeyName": "k"}
    warnings = " ".join(parse(request).spec.warnings)
    for field in ("network", "tensorboard", "encryption_spec"):
        assert field in warnings


def test_persistent_resource_id_of_a_job_is_parsed() -> None:
    """spec/queue#reservations: persistentResourceId selects a persistent resource."""
    assert parse(custom_job()).spec.persistent_resource is None
    assert parse(custom_job(persistentResourceId="lab")).spec.persistent_resource == "lab"


def test_empty_worker_pools_are_skipped() -> None:
    """spec/submit#vertex-jobs: an empty pool skips its position, also if a client sends its empty fields."""
    blank: dict[str, object] = {"machineSpec": {}, "replicaCount": "0", "nfsMounts": []}
    assert [p.position for p in parse(custom_job(pool(), blank, {}, {})).spec.pools] == [0]
