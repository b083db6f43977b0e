"""Validation of `ml` v1 jobs: violations with their fields, and specifications of valid jobs
(spec/submit)."""

import json
from typing import Any

import pytest

from tests.unit.specs_requests import (
    CUSTOM_IMAGE,
    NO_PACKAGE,
    REFUSED_IMAGE,
    SKLEARN,
    FakeRuntimes,
    Request,
    ml_job,
    rejected_fields,
)
from trainshed.core.job import DEFAULT_TIMEOUT, Accelerators, Disk, JobSpec
from trainshed.core.specs.ml import parse_job
from trainshed.core.specs.worker_pool import missing_gpu_warning

PACKAGE: Request = {"packageUris": ["gs://bucket/p.tar.gz"], "pythonModule": "trainer.task"}
OLD_TORCH = "gcr.io/cloud-ml-public/training/pytorch-gpu.1-6"


def spec_of(request: Request) -> JobSpec:
    spec = parse_job(request, runtimes=FakeRuntimes()).spec
    assert isinstance(spec, JobSpec)
    return spec


def violations(request: Request) -> dict[str, str]:
    return rejected_fields(lambda: spec_of(request))


def custom(**training: Any) -> Request:
    values: Request = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", **training}
    return ml_job(**values)


def image(uri: str = CUSTOM_IMAGE, *, config: Request | None = None, **training: Any) -> Request:
    """Return a container job on scale tier BASIC."""
    values: Request = NO_PACKAGE | {"masterConfig": {"imageUri": uri, **(config or {})}}
    return ml_job(**(values | training))


def disk(**config: Any) -> Request:
    return ml_job(masterConfig={"diskConfig": config})


def gpus(kind: str, count: str | None, machine: str = "n1-standard-8") -> Request:
    config: Request = {"type": kind} if count is None else {"type": kind, "count": count}
    return custom(masterType=machine, masterConfig={"acceleratorConfig": config})


ACCELERATORS, COMMAND = "master_config.accelerator_config", "master_config.container_command"
ONE_FAULT: dict[str, tuple[Request, str]] = {
    "no job id": (ml_job(job_id=""), "job_id"),
    "job id beginning with a digit": (ml_job(job_id="1job"), "job_id"),
    "long job id": (ml_job(job_id="j" * 129), "job_id"),
    "no training input": ({"jobId": "job_1"}, "training_input"),
    "prediction input": ({**ml_job(), "predictionInput": {"region": "us-central1"}}, "prediction_input"),
    "unknown scale tier": (ml_job(scaleTier="HUGE"), "scale_tier"),
    "master type on a tier": (ml_job(masterType="n1-standard-4"), "master_type"),
    "worker count on a tier": (ml_job(scaleTier=None, workerCount="1"), "worker_count"),
    "accelerators on a tier": (
        ml_job(masterConfig={"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": "1"}}),
        ACCELERATORS,
    ),
    "no master type": (ml_job(scaleTier="CUSTOM"), "master_type"),
    "Vertex-only machine type": (custom(masterType="n4-standard-4"), "master_type"),
    "tier of TPUs": (ml_job(scaleTier="BASIC_TPU"), "scale_tier"),
    "TPU": (custom(workerType="cloud_tpu", workerCount="1"), "worker_type"),
    "evaluators without type": (custom(evaluatorCount="1"), "evaluator_type"),
    "negative workers without type": (custom(workerCount="-1"), "worker_count"),
    "negative workers": (custom(workerType="n1-standard-4", workerCount="-1"), "worker_count"),
    "too many workers": (custom(workerType="n1-standard-4", workerCount="9" * 18), "worker_count"),
    "accelerators on a legacy type": (gpus("NVIDIA_TESLA_K80", "1", "standard"), ACCELERATORS),
    "GPU on the wrong machine": (gpus("NVIDIA_TESLA_A100", "1"), f"{ACCELERATORS}.type"),
    "GPU count": (gpus("NVIDIA_TESLA_K80", "3"), f"{ACCELERATORS}.count"),
    "GPU without count": (gpus("NVIDIA_TESLA_K80", None), f"{ACCELERATORS}.count"),
    "A2 without its GPUs": (custom(masterType="a2-highgpu-1g"), f"{ACCELERATORS}.type"),
    "disk type": (disk(bootDiskType="hyperdisk-balanced"), "master_config.disk_config.boot_disk_type"),
    "disk size": (disk(bootDiskSizeGb=10), "master_config.disk_config.boot_disk_size_gb"),
    "unknown runtime": (ml_job(runtimeVersion="9.9", pythonVersion=None), "runtime_version"),
    "Python 2.7 on 2.6": (ml_job(pythonVersion="2.7"), "python_version"),
    "rejected runtime": (ml_job(runtimeVersion="1.0", pythonVersion=None), "runtime_version"),
    "worker's image": (ml_job(workerConfig={"imageUri": CUSTOM_IMAGE}), "worker_config.image_uri"),
    "command without image": (ml_job(masterConfig={"containerCommand": ["x"]}), COMMAND),
    "image rejected by the runtimes": (image(REFUSED_IMAGE), "master_config.image_uri"),
    "malformed image name": (image("gs://bucket/image"), "master_config.image_uri"),
    "args and command": (image(config={"containerCommand": ["x"]}, args=["--a"]), COMMAND),
    "args and container args": (
        image(config={"containerArgs": ["x"]}, args=["--a"]),
        "master_config.container_args",
    ),
    "package and a command": (image(config={"containerCommand": ["x"]}, **PACKAGE), COMMAND),
    "prebuilt image without a program": (image(SKLEARN), COMMAND),
    "arguments without packages": (image(SKLEARN, args=["--module_name=trainer.task"]), "args"),
    "arguments with a local package": (
        image(SKLEARN, args=["--module_name=trainer.task", "--package_uris=p.tar.gz"]),
        "args",
    ),
    "no packages": (ml_job(packageUris=None), "package_uris"),
    "no module": (ml_job(pythonModule=None), "python_module"),
    "invalid bucket in the job directory": (ml_job(jobDir="gs://No_Such/x"), "job_dir"),
    "no region": (ml_job(region=None), "region"),
    "Vertex-only region": (ml_job(region="us-east5"), "region"),
    "maximum wait of 0": (ml_job(scheduling={"maxWaitTime": "0s"}), "scheduling.max_wait_time"),
    "negative priority": (ml_job(scheduling={"priority": -1}), "scheduling.priority"),
    "long arguments": (ml_job(args=["x" * 60_000, "y" * 60_000]), "args"),
}


def test_each_violation_in_an_ml_job_request_names_the_invalid_field() -> None:
    """spec/submit#refusals: a request that breaks one rule has exactly one violation."""
    names = {case: [*violations(request)] for case, (request, _) in ONE_FAULT.items()}
    assert names == {case: [field] for case, (_, field) in ONE_FAULT.items()}


def test_ml_job_error_lists_all_violations() -> None:
    """spec/submit#refusals: one error contains the violations of all fields."""
    request = ml_job(
        job_id="my-job",
        labels={"a b": "c"},
        scaleTier="CUSTOM",
        masterType="n1-standard-99",
        workerCount="2",
        masterConfig={"imageUri": REFUSED_IMAGE, "diskConfig": {"bootDiskSizeGb": 1}},
        runtimeVersion="2.6",
        region="mars",
        jobDir="x",
        scheduling={"maxWaitTime": "10s", "maxRunningTime": "-1s", "priority": 5000},
        serviceAccount="me",
        hyperparameters={},
    )
    faults = set(violations(request))
    assert faults >= {
        "job_id",
        "labels.a b",
        "master_type",
        "worker_type",
        "runtime_version",
        "python_version",
        "region",
        "job_dir",
        "scheduling.max_wait_time",
        "scheduling.max_running_time",
        "scheduling.priority",
        "service_account",
        "hyperparameters.params",
    }


def test_runtime_version_error_has_the_public_text() -> None:
    """facts/limits#error-texts: the public service's text, followed by the valid value."""
    faults = violations(ml_job(runtimeVersion="1.3", pythonVersion=None))
    assert faults["runtime_version"].startswith(
        "The specified runtime version '1.3' with the Python version '' is not supported or is "
        "deprecated.  Please specify a different runtime version."
    )
    faults = violations(ml_job(pythonVersion="3.5"))
    assert "Runtime version 2.6 supports Python 3.7." in faults["python_version"]


@pytest.mark.parametrize(
    ("version", "python"), [("1.14", "3.5"), ("1.15", "3.7"), ("2.11", "3.7"), ("1.2", "2.7")]
)
def test_omitted_python_version_is_the_default_of_the_runtime_version(version: str, python: str) -> None:
    """spec/submit#defaults: each runtime version has a default Python version."""
    spec = spec_of(ml_job(runtimeVersion=version, pythonVersion=None))
    assert spec.pool(0).program.runtime.python_version == python


def test_gpu_scale_tiers_warn_about_missing_gpus() -> None:
    """spec/queue#capacity, facts/machines#accelerators: a job without available GPUs has a warning."""
    gpu = spec_of(ml_job(scaleTier="BASIC_GPU"))
    assert gpu.pool(0).machine.accelerators == Accelerators("NVIDIA_TESLA_K80", 1)
    assert len(gpu.warnings) == 1, "the warning about missing GPUs needs the list of nodes"
    warning = missing_gpu_warning(gpu.pools, ())
    assert warning and "NVIDIA_TESLA_K80" in warning
    assert missing_gpu_warning(gpu.pools, {"NVIDIA_TESLA_T4"}) is None
    legacy = spec_of(custom(masterType="complex_model_l_gpu")).pool(0).machine
    assert (legacy.accelerators, legacy.vcpus) == (Accelerators("NVIDIA_TESLA_K80", 8), 32)


def test_ml_roles_without_an_image_use_the_master_image() -> None:
    """facts/program#arguments: a role without its own image uses the master's. All roles get the args."""
    spec = spec_of(
        image(
            scaleTier="CUSTOM",
            masterType="n1-standard-4",
            workerType="n1-standard-4",
            workerCount="1",
            parameterServerType="n1-standard-4",
            parameterServerCount="1",
            parameterServerConfig={"imageUri": "gcr.io/p1/ps:v1"},
            args=["--x", "1"],
            useChiefInTfConfig=True,
        )
    )
    images = [p.program.image_uri for p in spec.pools]
    assert images == [CUSTOM_IMAGE, CUSTOM_IMAGE, "gcr.io/p1/ps:v1"]
    assert all(p.program.args == ("--x", "1") for p in spec.pools)
    assert all(p.program.module is None for p in spec.pools)
    assert spec.use_chief_in_tf_config
    assert spec.runtime_version is None


@pytest.mark.parametrize(
    ("uri", "family"),
    [
        (OLD_TORCH, "pytorch"),
        ("gcr.io/cloud-ml-public/pytorch_cpu_2_7:1_0_preview", "pytorch"),
        ("gcr.io/cloud-ml-public/pytorch_gpu_2_7:1_0_preview", "pytorch"),
        ("example.com/p/own:1", "container"),
    ],
)
def test_container_image_with_packages_runs_the_python_module_of_the_request(uri: str, family: str) -> None:
    """facts/packaging#runtime-versions: the older PyTorch images accept packages and a module. Custom images
    install packages as in the Vertex API."""
    program = spec_of(image(uri, **PACKAGE)).pool(0).program
    assert (program.module, program.runtime.family) == ("trainer.task", family)


@pytest.mark.parametrize("field", ["args", "containerArgs"])
def test_old_pytorch_image_reads_packages_and_module_from_arguments(field: str) -> None:
    arguments = ["--module_name=trainer.task", "--epochs", "3", "--package_uris"]
    arguments += ["gs://bucket/a.tar.gz,gs://bucket/b.tar.gz", "--module_names=x"]
    config = {"containerArgs": arguments} if field == "containerArgs" else {}
    request = image(OLD_TORCH, config=config, **({"args": arguments} if field == "args" else {}))
    program = spec_of(request).pool(0).program
    assert (program.module, program.runtime.family) == ("trainer.task", "pytorch")
    assert program.package_uris == ("gs://bucket/a.tar.gz", "gs://bucket/b.tar.gz")
    assert program.args == ("--epochs", "3", "--module_names=x")


def test_ml_job_scheduling_and_disk_fields_are_parsed() -> None:
    """facts/lifecycle#scheduling: omitted limits have defaults."""
    request = ml_job(
        scheduling={"maxWaitTime": "1800s", "maxRunningTime": "7200s", "priority": 7},
        masterConfig={"diskConfig": {"bootDiskType": "pd-standard", "bootDiskSizeGb": 200}},
        jobDir="gs://bucket/job",
        serviceAccount="me@p.iam.gserviceaccount.com",
        args=["--lr", "0.1"],
        labels={"a": "b"},
    )
    spec = spec_of(request)
    assert spec.scheduling.max_wait == 1800 * 10**9
    assert (spec.scheduling.timeout, spec.scheduling.priority) == (7200 * 10**9, 7)
    assert spec.pool(0).disk == Disk("pd-standard", 200)
    assert spec.job_dir == "gs://bucket/job"
    assert spec.pool(0).program.args == ("--lr", "0.1")
    assert json.loads(spec.job_json) == request["trainingInput"]
    assert spec_of(ml_job()).scheduling.timeout == DEFAULT_TIMEOUT
    assert spec_of(ml_job()).scheduling.max_wait is None
    assert spec_of(ml_job()).warnings == ()


def test_ml_job_fields_without_effect_cause_warnings() -> None:
    def warnings_of(**changes: Any) -> str:
        return "\n".join(spec_of(ml_job(**changes)).warnings)

    disk = {"bootDiskType": "pd-standard", "bootDiskSizeGb": "300"}
    assert "a boot disk of 300 GB pd-standard" in warnings_of(masterConfig={"diskConfig": disk})
    assert warnings_of(masterConfig={"tpuTfVersion": "1.15"}).startswith(
        "master_config.tpu_tf_version is not supported by this service: this service has no TPUs"
    )
    assert warnings_of(workerConfig={"diskConfig": disk}) == (
        "worker_config has no effect: the job has no worker replicas."
    )
    custom: dict[str, Any] = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4"}
    assert warnings_of(**custom, parameterServerType="n1-standard-4") == (
        "parameter_server_type has no effect: the job has no ps replicas."
    )
    assert "use_chief_in_tf_config has no effect" in warnings_of(useChiefInTfConfig=True)


def test_ignored_ml_job_fields_cause_warnings() -> None:
    """No requested field is ignored silently. `false`, which gcloud always sends, causes no warning."""
    key = {"kmsKeyName": "k"}
    warnings = " ".join(spec_of(ml_job(encryptionConfig=key, network="n")).warnings)
    assert "encryption_config" in warnings
    assert "network" in warnings
    assert spec_of(ml_job(enableWebAccess=False)).warnings == ()
