"""Validation of Vertex CustomJobs: violations with their fields (spec/submit#refusals)."""

from tests.unit.specs_requests import (
    CUSTOM_IMAGE,
    MAPPED_IMAGE,
    REDUCER,
    REFUSED_IMAGE,
    SKLEARN,
    Request,
    container,
    custom_job,
    package,
    pool,
)
from tests.unit.specs_vertex import (
    FIRST,
    POOLS,
    labelled_job,
    machine,
    parse,
    variables,
    violations,
    with_gpus,
)
from trainshed.core.packages import COPY_LABEL

MACHINE, PACKAGE, CONTAINER = (
    f"{FIRST}.{part}" for part in ("machine_spec", "python_package_spec", "container_spec")
)
OUTPUT = "job_spec.base_output_directory.output_uri_prefix"

T4, N1 = "NVIDIA_TESLA_T4", "n1-standard-4"
EXECUTOR, PACKAGES = f"{PACKAGE}.executor_image_uri", f"{PACKAGE}.package_uris"
IMAGE, COMMAND, ENV = (f"{CONTAINER}.{part}" for part in ("image_uri", "command", "env"))
COUNT = f"{MACHINE}.accelerator_count"

FAULT_OF_THE_FIRST_POOL: dict[str, tuple[Request, str]] = {
    "two primaries": (pool(replicaCount="2"), f"{FIRST}.replica_count"),
    "no primary": (pool(replicaCount=None), f"{FIRST}.replica_count"),
    "disk too large": (pool(diskSpec={"bootDiskSizeGb": 64_001}), f"{FIRST}.disk_spec.boot_disk_size_gb"),
    "no program": (pool(pythonPackageSpec=None), CONTAINER),
    "two programs": (pool(containerSpec={"imageUri": CUSTOM_IMAGE}), CONTAINER),
    "no executor": (package(executorImageUri=None), EXECUTOR),
    "unknown executor": (package(executorImageUri=SKLEARN.replace("1-6", "9-9")), EXECUTOR),
    "no module": (package(pythonModule=None), f"{PACKAGE}.python_module"),
    "no packages": (package(packageUris=None), PACKAGES),
    "101 packages": (package(packageUris=["gs://bucket/p.tar.gz"] * 101), PACKAGES),
    "package is a bucket": (package(packageUris=["gs://bucket/"]), f"{PACKAGES}[0]"),
    "no image": (container(imageUri=None), IMAGE),
    "image with scheme": (container(imageUri="https://gcr.io/p/i"), IMAGE),
    "prebuilt image without a command": (container(imageUri=SKLEARN), COMMAND),
    "mapped image without a command": (container(imageUri=MAPPED_IMAGE), COMMAND),
    "prebuilt image with arguments only": (container(imageUri=SKLEARN, args=["--x"]), COMMAND),
    "invalid variable name": (container(env=variables({"GOOD": "", "1BAD": "x"})), f"{ENV}[1].name"),
    "command as one string": (container(command=["python3 -m x", "y"]), COMMAND),
    "short name of a prebuilt image": (container(imageUri="sklearn-cpu.1-6:slim"), IMAGE),
    "command split into characters": (container(command=[*"python3 -m x"]), COMMAND),
    "short command split into characters": (container(command=[*"ls"]), COMMAND),
    "arguments split into characters": (container(args=[*"--epochs 3"]), f"{CONTAINER}.args"),
    "101 variables": (container(env=[{"name": f"V{i}"} for i in range(101)]), ENV),
    "zero byte in a variable": (container(env=variables({"V": "a\0b"})), f"{ENV}[0].value"),
    "long arguments": (container(args=["x" * 50_001, "y" * 50_000]), f"{CONTAINER}.args"),
    "NFS": (pool(nfsMounts=[{"server": "10.0.0.1", "path": "p", "mountPoint": "m"}]), f"{FIRST}.nfs_mounts"),
    "Lustre": (pool(lustreMounts=[{"filesystem": "f"}]), f"{FIRST}.lustre_mounts"),
}
ONE_FAULT: dict[str, tuple[Request, str]] = {
    **{case: (custom_job(pool), field) for case, (pool, field) in FAULT_OF_THE_FIRST_POOL.items()},
    "long display name": ({**custom_job(), "displayName": "x" * 129}, "display_name"),
    "no job spec": ({"displayName": "job"}, POOLS),
    "five pools": (custom_job(*[pool()] * 5), POOLS),
    "first pool skipped": (custom_job({}, pool()), FIRST),
    "no count": (custom_job(pool(), pool(replicaCount=None)), f"{POOLS}[1].replica_count"),
    "negative count": (custom_job(pool(), pool(replicaCount="-1")), f"{POOLS}[1].replica_count"),
    "too large count": (custom_job(pool(), pool(replicaCount="9" * 18)), f"{POOLS}[1].replica_count"),
    "more replicas than addresses": (custom_job(pool(), pool(replicaCount="1990")), POOLS),
    "no machine": (machine(), f"{MACHINE}.machine_type"),
    "unknown machine": (machine(machineType="n1-standard4"), f"{MACHINE}.machine_type"),
    "legacy machine": (machine(machineType="complex_model_m"), f"{MACHINE}.machine_type"),
    "tier-only machine": (machine(machineType="n1-highcpu-8"), f"{MACHINE}.machine_type"),
    "one T4 on 32 vCPUs": (with_gpus(T4, 1, "n1-standard-32"), COUNT),
    "GPU without count": (machine(machineType=N1, acceleratorType=T4), COUNT),
    "count without GPU": (machine(machineType=N1, acceleratorCount=1), COUNT),
    "A2 without its GPUs": (machine(machineType="a2-highgpu-1g"), f"{MACHINE}.accelerator_type"),
    "TPU": (machine(machineType="ct5lp-hightpu-4t"), f"{MACHINE}.machine_type"),
    "topology without TPU": (machine(machineType=N1, tpuTopology="2x2"), f"{MACHINE}.tpu_topology"),
    "reducer rejected by the runtimes": (
        custom_job(pool(), {}, container(imageUri=REDUCER)),
        f"{POOLS}[2].container_spec.image_uri",
    ),
    "empty output directory": (custom_job(baseOutputDirectory={}), OUTPUT),
    "invalid bucket name": (custom_job(baseOutputDirectory={"outputUriPrefix": "gs://Bucket/x"}), OUTPUT),
    "tensorboard": (custom_job(tensorboard="tb"), "job_spec.tensorboard"),
    "endless timeout": (custom_job(scheduling={"timeout": "315576000000s"}), "job_spec.scheduling.timeout"),
    "label key beginning with a dash": (labelled_job(**{"-a": "b"}), "labels.-a"),
    "label value with a space": (labelled_job(team="a b"), "labels.team"),
    "long label value": (labelled_job(team="x" * 64), "labels.team"),
    "label value of 128 bytes": (labelled_job(team="名" * 43), "labels.team"),
    "65 labels": (labelled_job(**{f"k{i}": "v" for i in range(65)}), "labels"),
}


def test_copied_job_may_have_65_labels() -> None:
    labels = {f"k{i}": "v" for i in range(64)}
    assert len(parse(labelled_job(**labels, **{COPY_LABEL: "7"})).labels) == 65


def test_each_violation_in_a_vertex_job_request_names_the_invalid_field() -> None:
    """spec/submit#refusals: a request that breaks one rule has exactly one violation."""
    names = {case: [*violations(request)] for case, (request, _) in ONE_FAULT.items()}
    assert names == {case: [field] for case, (_, field) in ONE_FAULT.items()}


def test_vertex_job_error_lists_all_violations() -> None:
    """spec/submit#refusals: the error names all invalid fields in all parts of the job."""
    request: Request = {
        "labels": {"Team": "a"},
        "jobSpec": {
            "workerPoolSpecs": [
                package(executorImageUri=REFUSED_IMAGE, pythonModule="x/y.py", packageUris=["p"]),
                pool(
                    machineSpec={"machineType": "n1-standard-4", "acceleratorType": "NVIDIA_L4"},
                    replicaCount="0",
                ),
                {},
                container(imageUri=REFUSED_IMAGE, env=[{"name": ""}])
                | {"diskSpec": {"bootDiskType": "x", "bootDiskSizeGb": 1}},
            ],
            "scheduling": {"timeout": "-2s", "maxWaitDuration": "-1s"},
            "serviceAccount": "me",
            "baseOutputDirectory": {"outputUriPrefix": "x"},
        },
    }
    assert set(violations(request)) == {
        "display_name",
        "labels.Team",
        EXECUTOR,
        f"{PACKAGE}.python_module",
        f"{PACKAGES}[0]",
        f"{POOLS}[1].machine_spec.accelerator_type",
        f"{POOLS}[1].replica_count",
        f"{POOLS}[3].container_spec.image_uri",
        f"{POOLS}[3].container_spec.env[0].name",
        f"{POOLS}[3].disk_spec.boot_disk_type",
        f"{POOLS}[3].disk_spec.boot_disk_size_gb",
        "job_spec.scheduling.timeout",
        "job_spec.scheduling.max_wait_duration",
        "job_spec.service_account",
        OUTPUT,
    }


def test_machine_type_errors_have_the_public_text() -> None:
    """facts/limits#error-texts: descriptions start with the texts of the public service."""
    faults = violations(machine(machineType="n1-standard4"))
    assert faults[f"{MACHINE}.machine_type"] == (
        "Machine type n1-standard4 is not supported. Did you mean n1-standard-4?"
    )
    faults = violations(with_gpus("NVIDIA_L4", 1))
    assert faults[f"{MACHINE}.accelerator_type"].startswith(
        'Accelerator "NVIDIA_L4" is not supported for machine type "n1-standard-4"'
    )


def test_reducers_with_accelerators_are_rejected() -> None:
    """spec/submit#warnings: accelerators on a reducer pool are an additional violation."""
    reducers = container(imageUri=REDUCER) | {
        "machineSpec": {
            "machineType": "n1-highcpu-16",
            "acceleratorType": "NVIDIA_TESLA_T4",
            "acceleratorCount": 1,
        }
    }
    faults = violations(custom_job(pool(), pool(), reducers))
    assert f"{POOLS}[2].machine_spec.accelerator_type" in faults
    reducers["machineSpec"] = {"machineType": "a2-highgpu-1g"}
    faults = violations(custom_job(pool(), pool(), reducers))
    assert "do not use accelerators" in faults[f"{POOLS}[2].machine_spec.machine_type"]


def test_environment_variables_of_reducers_and_workers_are_validated() -> None:
    """spec/submit#refusals, spec/reduction: the error lists all faults with their fields. Values that
    are only known at run time are not checked."""
    worker = {
        "TRAINSHED_REDUCTION": "fast",
        "TRAINSHED_REDUCTION_CHUNK_BYTES": "12",
        "TRAINSHED_REDUCTION_MIN_BYTES": "$(LEAST)",
        "TRAINSHED_REDUCTION_WAIT_SECONDS": "0",
        "TRAINSHED_REDUCTION_CREDIT_BYTES": "lots",
        "TRAINSHED_REDUCTION_NODE_FIRST": "no",
        "TRAINSHED_REDUCTION_ABSENT_SECONDS": "",
        "TRAINSHED_REDUCERS": "here:1,there",
    }
    reducer = {
        "TRAINSHED_REDUCER_THREADS": "0",
        "TRAINSHED_REDUCER_LISTEN": "nowhere",
        "TRAINSHED_REDUCTION_ATTEMPT": "$(secret:one)",
    }
    second = container(env=variables({"TRAINSHED_REDUCTION": "on"}))
    reducers = container(imageUri=REDUCER, env=variables(reducer))
    faults = violations(custom_job(package(env=variables(worker)), second, reducers, pool()))
    package_env = f"{PACKAGE}.env"
    reducer_env = f"{POOLS}[2].container_spec.env"
    wrong = [field for field in faults if ".env[" in field]
    assert wrong == [
        *(f"{package_env}[{index}].value" for index in (0, 1, 3, 4, 5, 7)),
        f"{POOLS}[1].container_spec.env[0].value",
        *(f"{reducer_env}[{index}].value" for index in (0, 1)),
    ]
    assert faults[wrong[0]] == "TRAINSHED_REDUCTION='fast' is not one of auto, off."
    assert "not a number of at least 4096" in faults[wrong[1]]
    assert f"{MACHINE}.machine_type" not in faults
