"""Vertex CustomJobs: what is refused, with which fields, and what a valid one becomes (spec/submit)."""

import json
from typing import Any

import pytest

from tests.unit.specs_requests import (
    CUSTOM_IMAGE,
    MAPPED_IMAGE,
    REDUCER,
    REFUSED_IMAGE,
    SKLEARN,
    TENSORFLOW,
    FakeRuntimes,
    Request,
    container,
    custom_job,
    package,
    pool,
)
from trainshed.core.errors import InvalidRequest
from trainshed.core.job.spec import DEFAULT_TIMEOUT, Accelerators, Disk, Strategy
from trainshed.core.names import Api, ReplicaId
from trainshed.core.specs.vertex import ParsedCustomJob, parse_custom_job

DAY = 24 * 3600 * 10**9
POOLS = "job_spec.worker_pool_specs"
FIRST = f"{POOLS}[0]"


def parse(request: Request) -> ParsedCustomJob:
    return parse_custom_job(request, region="us-central1", runtimes=FakeRuntimes())


def violations(request: Request) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as refusal:
        parse(request)
    found = refusal.value.violations
    assert all(v.description.strip() for v in found)
    return {v.field: v.description for v in found}


def machine(**spec: Any) -> Request:
    return custom_job(pool(machineSpec=spec))


def with_gpus(kind: str, count: int, machine_type: str = "n1-standard-4") -> Request:
    return machine(machineType=machine_type, acceleratorType=kind, acceleratorCount=count)


def flex(**changes: Any) -> Request:
    scheduling = {"strategy": "FLEX_START", **changes}
    first = pool(
        machineSpec={
            "machineType": "g2-standard-4",
            "acceleratorType": "NVIDIA_L4",
            "acceleratorCount": 1,
        }
    )
    return custom_job(first, scheduling=scheduling)


def labelled(**labels: str) -> Request:
    return {**custom_job(), "labels": labels}


ONE_FAULT: dict[str, tuple[Request, str]] = {
    "no display name": ({"jobSpec": custom_job()["jobSpec"]}, "display_name"),
    "long display name": ({**custom_job(), "displayName": "x" * 129}, "display_name"),
    "no job spec": ({"displayName": "job"}, POOLS),
    "five pools": (custom_job(*[pool()] * 5), POOLS),
    "first pool skipped": (custom_job({}, pool()), FIRST),
    "two primaries": (custom_job(pool(replicaCount="2")), f"{FIRST}.replica_count"),
    "no primary": (custom_job(pool(replicaCount=None)), f"{FIRST}.replica_count"),
    "pool without count": (
        custom_job(pool(), pool(replicaCount=None)),
        f"{POOLS}[1].replica_count",
    ),
    "negative count": (custom_job(pool(), pool(replicaCount="-1")), f"{POOLS}[1].replica_count"),
    "absurd count": (custom_job(pool(), pool(replicaCount="9" * 18)), f"{POOLS}[1].replica_count"),
    "too many addresses": (custom_job(pool(), pool(replicaCount="1990")), POOLS),
    "no machine": (machine(), f"{FIRST}.machine_spec.machine_type"),
    "unknown machine": (machine(machineType="n1-standard4"), f"{FIRST}.machine_spec.machine_type"),
    "legacy machine": (
        machine(machineType="complex_model_m"),
        f"{FIRST}.machine_spec.machine_type",
    ),
    "tier-only machine": (
        machine(machineType="n1-highcpu-8"),
        f"{FIRST}.machine_spec.machine_type",
    ),
    "GPU of another machine": (with_gpus("NVIDIA_L4", 1), f"{FIRST}.machine_spec.accelerator_type"),
    "GPU on e2": (
        with_gpus("NVIDIA_TESLA_T4", 1, "e2-standard-4"),
        f"{FIRST}.machine_spec.accelerator_type",
    ),
    "three T4": (with_gpus("NVIDIA_TESLA_T4", 3), f"{FIRST}.machine_spec.accelerator_count"),
    "one T4 on 32 vCPUs": (
        with_gpus("NVIDIA_TESLA_T4", 1, "n1-standard-32"),
        f"{FIRST}.machine_spec.accelerator_count",
    ),
    "GPU without count": (
        machine(machineType="n1-standard-4", acceleratorType="NVIDIA_TESLA_T4"),
        f"{FIRST}.machine_spec.accelerator_count",
    ),
    "count without GPU": (
        machine(machineType="n1-standard-4", acceleratorCount=1),
        f"{FIRST}.machine_spec.accelerator_count",
    ),
    "GPU machine without GPUs": (
        machine(machineType="a2-highgpu-1g"),
        f"{FIRST}.machine_spec.accelerator_type",
    ),
    "TPU without topology": (
        machine(machineType="ct5lp-hightpu-4t"),
        f"{FIRST}.machine_spec.tpu_topology",
    ),
    "topology without TPU": (
        machine(machineType="n1-standard-4", tpuTopology="2x2"),
        f"{FIRST}.machine_spec.tpu_topology",
    ),
    "TPU pod of 40": (
        with_gpus("TPU_V3", 40, "cloud-tpu"),
        f"{FIRST}.machine_spec.accelerator_count",
    ),
    "disk type": (
        custom_job(pool(diskSpec={"bootDiskType": "pd-fast"})),
        f"{FIRST}.disk_spec.boot_disk_type",
    ),
    "small disk": (
        custom_job(pool(diskSpec={"bootDiskSizeGb": 99})),
        f"{FIRST}.disk_spec.boot_disk_size_gb",
    ),
    "large disk": (
        custom_job(pool(diskSpec={"bootDiskSizeGb": 64_001})),
        f"{FIRST}.disk_spec.boot_disk_size_gb",
    ),
    "no program": (custom_job(pool(pythonPackageSpec=None)), f"{FIRST}.container_spec"),
    "two programs": (
        custom_job(pool(containerSpec={"imageUri": CUSTOM_IMAGE})),
        f"{FIRST}.container_spec",
    ),
    "no executor": (
        custom_job(package(executorImageUri=None)),
        f"{FIRST}.python_package_spec.executor_image_uri",
    ),
    "executor that cannot be run": (
        custom_job(package(executorImageUri=REFUSED_IMAGE)),
        f"{FIRST}.python_package_spec.executor_image_uri",
    ),
    "executor of no known version": (
        custom_job(package(executorImageUri=SKLEARN.replace("1-6", "9-9"))),
        f"{FIRST}.python_package_spec.executor_image_uri",
    ),
    "no module": (
        custom_job(package(pythonModule=None)),
        f"{FIRST}.python_package_spec.python_module",
    ),
    "module is a path": (
        custom_job(package(pythonModule="trainer/task.py")),
        f"{FIRST}.python_package_spec.python_module",
    ),
    "no packages": (
        custom_job(package(packageUris=None)),
        f"{FIRST}.python_package_spec.package_uris",
    ),
    "101 packages": (
        custom_job(package(packageUris=["gs://bucket/p.tar.gz"] * 101)),
        f"{FIRST}.python_package_spec.package_uris",
    ),
    "package outside a bucket": (
        custom_job(package(packageUris=["gs://bucket/p.tar.gz", "/tmp/p.tar.gz"])),
        f"{FIRST}.python_package_spec.package_uris[1]",
    ),
    "package is a bucket": (
        custom_job(package(packageUris=["gs://bucket/"])),
        f"{FIRST}.python_package_spec.package_uris[0]",
    ),
    "no image": (custom_job(container(imageUri=None)), f"{FIRST}.container_spec.image_uri"),
    "image with scheme": (
        custom_job(container(imageUri="https://gcr.io/p/i")),
        f"{FIRST}.container_spec.image_uri",
    ),
    "image refused by the runtimes": (
        custom_job(container(imageUri=REFUSED_IMAGE)),
        f"{FIRST}.container_spec.image_uri",
    ),
    "prebuilt image without a command": (
        custom_job(container(imageUri=SKLEARN)),
        f"{FIRST}.container_spec.command",
    ),
    "prebuilt image with arguments only": (
        custom_job(container(imageUri=SKLEARN, args=["--x"])),
        f"{FIRST}.container_spec.command",
    ),
    "reducer refused by the runtimes": (
        custom_job(pool(), {}, container(imageUri=REDUCER)),
        f"{POOLS}[2].container_spec.image_uri",
    ),
    "variable name": (
        custom_job(container(env=[{"name": "GOOD"}, {"name": "1BAD", "value": "x"}])),
        f"{FIRST}.container_spec.env[1].name",
    ),
    "101 variables": (
        custom_job(container(env=[{"name": f"V{i}"} for i in range(101)])),
        f"{FIRST}.container_spec.env",
    ),
    "zero byte in a variable": (
        custom_job(container(env=[{"name": "V", "value": "a\0b"}])),
        f"{FIRST}.container_spec.env[0].value",
    ),
    "long arguments": (
        custom_job(container(args=["x" * 50_001, "y" * 50_000])),
        f"{FIRST}.container_spec.args",
    ),
    "NFS": (
        custom_job(pool(nfsMounts=[{"server": "10.0.0.1", "path": "p", "mountPoint": "m"}])),
        f"{FIRST}.nfs_mounts",
    ),
    "Lustre": (custom_job(pool(lustreMounts=[{"filesystem": "f"}])), f"{FIRST}.lustre_mounts"),
    "output directory": (
        custom_job(baseOutputDirectory={"outputUriPrefix": "/tmp/out"}),
        "job_spec.base_output_directory.output_uri_prefix",
    ),
    "empty output directory": (
        custom_job(baseOutputDirectory={}),
        "job_spec.base_output_directory.output_uri_prefix",
    ),
    "bucket name": (
        custom_job(baseOutputDirectory={"outputUriPrefix": "gs://Bucket/x"}),
        "job_spec.base_output_directory.output_uri_prefix",
    ),
    "service account": (custom_job(serviceAccount="me"), "job_spec.service_account"),
    "network": (custom_job(network="default"), "job_spec.network"),
    "tensorboard": (custom_job(tensorboard="tb"), "job_spec.tensorboard"),
    "negative timeout": (custom_job(scheduling={"timeout": "-1s"}), "job_spec.scheduling.timeout"),
    "endless timeout": (
        custom_job(scheduling={"timeout": "315576000000s"}),
        "job_spec.scheduling.timeout",
    ),
    "negative wait": (
        custom_job(scheduling={"maxWaitDuration": "-1s"}),
        "job_spec.scheduling.max_wait_duration",
    ),
    "FLEX_START without GPUs": (
        custom_job(scheduling={"strategy": "FLEX_START"}),
        "job_spec.scheduling.strategy",
    ),
    "FLEX_START over seven days": (flex(timeout="604801s"), "job_spec.scheduling.timeout"),
    "label key in capitals": (labelled(Team="a"), "labels.Team"),
    "label key beginning with a dash": (labelled(**{"-a": "b"}), "labels.-a"),
    "label value with a space": (labelled(team="a b"), "labels.team"),
    "long label value": (labelled(team="x" * 64), "labels.team"),
    "label value of 128 bytes": (labelled(team="名" * 43), "labels.team"),
    "65 labels": (labelled(**{f"k{i}": "v" for i in range(65)}), "labels"),
}


@pytest.mark.parametrize("case", ONE_FAULT)
def test_refusal_names_the_field(case: str) -> None:
    """spec/submit#refusals: each rule by itself names exactly the field that breaks it."""
    request, field = ONE_FAULT[case]
    assert list(violations(request)) == [field]


def test_all_violations_are_reported_at_once() -> None:
    """spec/submit#refusals: the refusal names all the offending fields, whatever part of the job they are
    in."""
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
        f"{FIRST}.python_package_spec.executor_image_uri",
        f"{FIRST}.python_package_spec.python_module",
        f"{FIRST}.python_package_spec.package_uris[0]",
        f"{POOLS}[1].machine_spec.accelerator_type",
        f"{POOLS}[1].replica_count",
        f"{POOLS}[3].container_spec.image_uri",
        f"{POOLS}[3].container_spec.env[0].name",
        f"{POOLS}[3].disk_spec.boot_disk_type",
        f"{POOLS}[3].disk_spec.boot_disk_size_gb",
        "job_spec.scheduling.timeout",
        "job_spec.scheduling.max_wait_duration",
        "job_spec.service_account",
        "job_spec.base_output_directory.output_uri_prefix",
    }


def test_public_words() -> None:
    """facts/limits#error-texts: the texts that were seen begin the descriptions."""
    found = violations(machine(machineType="n1-standard4"))
    assert found[f"{FIRST}.machine_spec.machine_type"] == (
        "Machine type n1-standard4 is not supported. Did you mean n1-standard-4?"
    )
    found = violations(with_gpus("NVIDIA_L4", 1))
    assert found[f"{FIRST}.machine_spec.accelerator_type"].startswith(
        'Accelerator "NVIDIA_L4" is not supported for machine type "n1-standard-4"'
    )


def test_accelerators_that_the_public_services_have_no_more_are_taken_with_a_notice() -> None:
    spec = parse(with_gpus("NVIDIA_TESLA_K80", 1)).spec
    assert spec.pool(0).machine.accelerators == Accelerators("NVIDIA_TESLA_K80", 1)
    (notice,) = spec.warnings
    assert notice.startswith(
        "The public services have no NVIDIA_TESLA_K80 any more; the job is taken"
    )
    assert not parse(with_gpus("NVIDIA_TESLA_P100", 1)).spec.warnings, "these are still there"


def test_disks_are_spoken_of_where_they_are_not_what_everybody_has() -> None:
    def warnings(**disk: str) -> tuple[str, ...]:
        return parse(custom_job(pool(diskSpec=disk))).spec.warnings

    (notice,) = warnings(bootDiskType="pd-standard", bootDiskSizeGb="200")
    assert "a boot disk of 200 GB pd-standard: the files of its programs lie on the disk" in notice
    assert len(warnings(bootDiskSizeGb="500")) == 1
    assert not warnings(bootDiskType="pd-ssd", bootDiskSizeGb="100"), "the SDK's defaults"


def test_reducers_take_no_accelerators() -> None:
    """spec/submit#warnings: accelerators on a reducer pool are refused, besides what the runtimes say."""
    reducers = container(imageUri=REDUCER) | {
        "machineSpec": {
            "machineType": "n1-highcpu-16",
            "acceleratorType": "NVIDIA_TESLA_T4",
            "acceleratorCount": 1,
        }
    }
    found = violations(custom_job(pool(), pool(), reducers))
    assert f"{POOLS}[2].machine_spec.accelerator_type" in found
    reducers["machineSpec"] = {"machineType": "a2-highgpu-1g"}
    found = violations(custom_job(pool(), pool(), reducers))
    assert "do not use accelerators" in found[f"{POOLS}[2].machine_spec.machine_type"]


def test_reducers_only_in_the_third_pool() -> None:
    found = violations(custom_job(pool(), container(imageUri=REDUCER)))
    assert "third worker pool" in found[f"{POOLS}[1].container_spec.image_uri"]


def test_what_reducers_and_their_workers_are_told_is_checked() -> None:
    """spec/submit#refusals, spec/reduction: all that is wrong at once, each at its field; what only a started
    program knows is left alone."""
    worker = {
        "TRAINSHED_REDUCTION": "fast",
        "TRAINSHED_REDUCTION_CHUNK_BYTES": "12",
        "TRAINSHED_REDUCTION_MIN_BYTES": "$(LEAST)",
        "TRAINSHED_REDUCTION_WAIT_SECONDS": "0",
        "TRAINSHED_REDUCTION_CREDIT_BYTES": "lots",
        "TRAINSHED_REDUCTION_NODE_FIRST": "no",
        "TRAINSHED_REDUCTION_LOST_SECONDS": "",
        "TRAINSHED_REDUCERS": "here:1,there",
    }
    reducer = {
        "TRAINSHED_REDUCER_PROCESSES": "0",
        "TRAINSHED_REDUCER_LISTEN": "nowhere",
        "TRAINSHED_REDUCTION_KEY_FILE": "/key.pem",
        "TRAINSHED_REDUCTION_ATTEMPT": "$(secret:one)",
    }
    workers = (
        package(env=variables(worker)),
        container(env=variables({"TRAINSHED_REDUCTION": "on"})),
    )
    found = violations(
        custom_job(*workers, container(imageUri=REDUCER, env=variables(reducer)), pool())
    )
    package_env = f"{FIRST}.python_package_spec.env"
    reducer_env = f"{POOLS}[2].container_spec.env"
    wrong = [field for field in found if ".env[" in field]
    assert wrong == [
        *(f"{package_env}[{index}].value" for index in (0, 1, 3, 4, 5, 7)),
        f"{POOLS}[1].container_spec.env[0].value",
        *(f"{reducer_env}[{index}].value" for index in (0, 1, 2)),
    ]
    assert found[wrong[0]] == "TRAINSHED_REDUCTION='fast' is none of auto, pure, hybrid, off."
    assert "no number of at least 4096" in found[wrong[1]]
    assert found[wrong[-1]].endswith("_KEY_FILE is set without TRAINSHED_REDUCTION_CERT_FILE.")
    assert f"{FIRST}.machine_spec.machine_type" not in found


def test_a_job_without_reducers_may_say_what_it_likes() -> None:
    """Nobody reads it."""
    worker = package(env=variables({"TRAINSHED_REDUCTION": "fast"}))
    found = parse(custom_job(worker, worker)).spec
    assert found.pool(1).program.env == (("TRAINSHED_REDUCTION", "fast"),)


def variables(given: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in given.items()]


def test_flex_start_needs_one_configuration() -> None:
    """facts/lifecycle#scheduling."""
    request = flex()
    request["jobSpec"]["workerPoolSpecs"].append(pool())
    assert "job_spec.scheduling.strategy" in violations(request)


def test_a_valid_job_keeps_what_was_given() -> None:
    """spec/submit#vertex-jobs, spec/submit#defaults: positions, machines, defaults; skipped positions leave
    no pool."""
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
        ("TPU_V2", 8, "cloud-tpu"),
        ("TPU_V3", 32, "cloud-tpu"),
    ],
)
def test_accelerators_that_go_with_their_machine(kind: str, count: int, machine_type: str) -> None:
    """facts/machines#accelerators."""
    spec = parse(with_gpus(kind, count, machine_type)).spec
    assert spec.pool(0).machine.accelerators == Accelerators(kind, count)


def test_tpu_by_topology_runs_with_a_warning() -> None:
    """facts/machines#accelerators: a v5e machine names its topology and no accelerator."""
    spec = parse(machine(machineType="ct5lp-hightpu-4t", tpuTopology="4x4")).spec
    assert spec.pool(0).machine.accelerators is None
    assert any("TPU" in warning for warning in spec.warnings)


def test_hyperdisk_is_the_default_where_it_must_be() -> None:
    """facts/machines#disks."""
    spec = parse(with_gpus("NVIDIA_H200_141GB", 8, "a3-ultragpu-8g")).spec
    assert spec.pool(0).disk.type == "hyperdisk-balanced"


def test_scheduling() -> None:
    """facts/lifecycle#scheduling: 0s means the default, disableRetries turns whole-job restarts off."""
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
    assert (
        parse(custom_job(scheduling={"strategy": "SPOT"})).spec.scheduling.strategy is Strategy.SPOT
    )


@pytest.mark.parametrize(
    ("changes", "wait"),
    [({}, DAY), ({"maxWaitDuration": "0s"}, None), ({"maxWaitDuration": "60s"}, 60 * 10**9)],
)
def test_flex_start_waits(changes: Request, wait: int | None) -> None:
    """facts/lifecycle#scheduling: a day by default, 0 for ever."""
    assert parse(flex(**changes)).spec.scheduling.max_wait == wait


@pytest.mark.parametrize("strategy", [None, "ON_DEMAND", "LOW_COST", "STANDARD", "SPOT"])
@pytest.mark.parametrize(("given", "wait"), [(None, None), ("0s", None), ("1800s", 1800 * 10**9)])
def test_every_strategy_takes_a_limit_of_the_wait(
    strategy: str | None, given: str | None, wait: int | None
) -> None:
    """As the SDK sends it with any strategy, or none; the public text speaks of FLEX_START alone."""
    scheduling = {"strategy": strategy, "maxWaitDuration": given}
    asked = {name: value for name, value in scheduling.items() if value is not None}
    assert parse(custom_job(scheduling=asked)).spec.scheduling.max_wait == wait


def test_a_prebuilt_image_with_a_command_is_a_container() -> None:
    request = custom_job(container(imageUri=SKLEARN, command=["sh", "-c"], args=["echo hi"]))
    program = parse(request).spec.pool(0).program
    assert program.module is None
    assert (program.command, program.args) == (("sh", "-c"), ("echo hi",))


@pytest.mark.parametrize("uri", [CUSTOM_IMAGE, MAPPED_IMAGE])
def test_packages_run_in_any_image_that_can_be_had(uri: str) -> None:
    """spec/runtimes#substitutes: an image map lets other images than the prebuilt ones run, and so does a
    container tool."""
    program = parse(custom_job(package(executorImageUri=uri))).spec.pool(0).program
    assert (program.image_uri, program.module) == (uri, "trainer.task")
    assert program.package_uris
    assert program.runtime.family == ("python" if uri == MAPPED_IMAGE else "container")


def test_a_prebuilt_image_installs_packages_and_runs_a_module_by_its_arguments() -> None:
    args = ["--module_name=trainer.task", "--package_uris=gs://bucket/p.tar.gz", "--epochs=3"]
    program = parse(custom_job(container(imageUri=SKLEARN, args=args))).spec.pool(0).program
    assert (program.module, program.package_uris) == ("trainer.task", ("gs://bucket/p.tar.gz",))
    assert program.args == ("--epochs=3",)


def test_an_image_that_an_environment_stands_for_needs_a_command() -> None:
    """spec/program#arguments, spec/runtimes#images: an environment has no entry point; a container has its
    own."""
    assert list(violations(custom_job(container(imageUri=MAPPED_IMAGE)))) == [
        f"{FIRST}.container_spec.command"
    ]
    assert parse(custom_job(container(imageUri=CUSTOM_IMAGE))).spec.pool(0).program.command == ()


def test_warnings_of_pools() -> None:
    """spec/submit#warnings: workers without TensorFlow, more than one evaluator."""
    assert parse(custom_job()).spec.warnings == ()
    two_workers = parse(custom_job(pool(), pool(replicaCount="2"))).spec.warnings
    assert len(two_workers) == 1
    assert "workers" in two_workers[0]
    tf = package(executorImageUri=TENSORFLOW)
    assert parse(custom_job(tf, tf, tf, tf)).spec.warnings == ()
    evaluators = parse(custom_job(tf, {}, {}, tf | {"replicaCount": "2"})).spec.warnings
    assert len(evaluators) == 1
    assert "2 evaluators" in evaluators[0]


def test_a_misspelt_secret_is_told() -> None:
    """spec/operations#errors: it is no error, for a program may be meant to get just that."""
    env = [{"name": "A", "value": "x $(secert:db)"}, {"name": "B", "value": "$(OTHER)"}]
    _workers, said = parse(custom_job(container(env=env), package(env=env))).spec.warnings
    assert "variable A has $(secert:db)" in said and "$(secret:NAME)" in said


def test_what_is_ignored_is_said() -> None:
    """Nothing that was asked for is dropped silently."""
    request = custom_job(
        enableDashboardAccess=True,
        network="projects/1/global/networks/default",
        tensorboard="projects/1/locations/us-central1/tensorboards/2",
        experiment="projects/1/locations/us-central1/metadataStores/default/contexts/e",
        persistentResourceId="mine",
    )
    request["encryptionSpec"] = {"kmsKeyName": "k"}
    said = " ".join(parse(request).spec.warnings)
    for field in (
        "enable_dashboard_access",
        "network",
        "tensorboard",
        "experiment",
        "encryption_spec",
        "persistent_resource_id",
    ):
        assert field in said


def test_trailing_and_blank_pools_are_skipped() -> None:
    """spec/submit#vertex-jobs: an empty pool skips its position, also when a client spells the emptiness
    out."""
    blank: Request = {"machineSpec": {}, "replicaCount": "0", "nfsMounts": []}
    assert [p.position for p in parse(custom_job(pool(), blank, {}, {})).spec.pools] == [0]


@pytest.mark.parametrize(("count", "skips"), [(None, True), ("5000", False), ("-1", False)])
def test_only_who_gives_no_replicas_is_told_how_to_skip_a_pool(
    count: str | None, skips: bool
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(custom_job(pool(), pool(replicaCount=count)))
    (violation,) = refused.value.violations
    assert ("skip a position" in violation.description) is skips
