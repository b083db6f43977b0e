"""What replicas are told and given: cluster, ranks, environment, command line (spec/program#ranks,
facts/program).

The launch of whole jobs is compared with files under tests/golden/launch; set UPDATE_GOLDEN=1 to write them.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.jobs import job
from tests.unit.specs_requests import (
    CUSTOM_IMAGE,
    GUIDE,
    REDUCER,
    SKLEARN,
    TENSORFLOW,
    FakeRuntimes,
    ReducingRuntimes,
    Request,
    container,
    custom_job,
    ml_job,
    package,
)
from trainshed.controller.launch_plans import LaunchDefaults, launch_plans, slot_requests
from trainshed.core.cluster import Endpoint, hostname
from trainshed.core.environment import (
    Gang,
    arguments,
    cluster_spec,
    environment,
    expand,
    rank,
    tf_config,
)
from trainshed.core.job.spec import Disk, JobSpec, Program
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import Replica
from trainshed.core.names import Api, JobName, JobUid, ReplicaId
from trainshed.core.runtime import OldWay
from trainshed.core.specs.ml import parse_job
from trainshed.core.specs.vertex import parse_custom_job
from trainshed.engines.port import Slot
from trainshed.runtimes.port import PreparedRuntime

GOLDEN = Path(__file__).parents[1] / "golden" / "launch"
UID = JobUid(7)
PRIMARY, WORKER, SERVER = (ReplicaId(position, 0) for position in range(3))
NESTED = ("CLUSTER_SPEC", "TF_CONFIG", "CLOUD_ML_JOB")


def vertex(request: Request) -> JobSpec:
    return parse_custom_job(request, region="us-central1", runtimes=ReducingRuntimes()).spec


def ml(**training: Any) -> JobSpec:
    return parse_job(ml_job(**training), runtimes=FakeRuntimes()).spec


def ml_container(**training: Any) -> JobSpec:
    values: Request = dict.fromkeys(
        ("packageUris", "pythonModule", "runtimeVersion", "pythonVersion")
    )
    values["masterConfig"] = {"imageUri": CUSTOM_IMAGE}
    return ml(**(values | training))


def gang(spec: JobSpec) -> Gang:
    """The job at the addresses that its hostnames promise."""
    trial = f".{spec.trial}" if spec.trial else ""
    name = (
        JobName(Api.VERTEX, "project-1", "us-central1", "42")
        if spec.api is Api.VERTEX
        else JobName(Api.ML, "project-1", "", f"job_1{trial}")
    )
    endpoints = {r: Endpoint(hostname(UID, spec, r), 2222) for r in spec.replicas()}
    return Gang(name, spec, endpoints, 23456, UID)


def environ(spec: JobSpec, replica: ReplicaId) -> dict[str, str]:
    return dict(environment(gang(spec), replica, packages="/cache/reduction/1"))


def launch(spec: JobSpec, replica: ReplicaId) -> dict[str, Any]:
    """A replica's start as readable JSON: variables that hold JSON are shown parsed."""
    variables = environ(spec, replica)
    shown: dict[str, Any] = {
        name: json.loads(value) if name in NESTED else value for name, value in variables.items()
    }
    return {
        "hostname": hostname(UID, spec, replica),
        "argv": list(arguments(spec, replica, variables)),
        "environ": shown,
    }


TWO_WORKERS = package(
    executorImageUri=TENSORFLOW,
    args=["--out", "$(AIP_MODEL_DIR)", "--literal=$$(AIP_MODEL_DIR)", "$(NOBODY)"],
    env=[
        {"name": "RUN", "value": "run of $(CLOUD_ML_JOB_ID)"},
        {"name": "AGAIN", "value": "$(RUN)!"},
    ],
)
FOUR_POOLS = vertex(
    custom_job(
        TWO_WORKERS,
        TWO_WORKERS | {"replicaCount": "2"},
        {},
        TWO_WORKERS,
        baseOutputDirectory={"outputUriPrefix": "gs://bucket/out/"},
        tensorboard="projects/1/locations/us-central1/tensorboards/2",
    )
)
SINGLE = vertex(
    custom_job(container(imageUri=SKLEARN, command=["sh", "-c"], args=["echo $$ $(date)"]))
)
BASIC = ml(
    runtimeVersion=None,
    pythonVersion=None,
    args=["--x", "$(HOME)", "--", "a b"],
    jobDir="gs://bucket/job",
)
THIRTEEN = ml(**GUIDE)
CONTAINERS = ml_container(
    scaleTier="CUSTOM",
    masterType="n1-standard-4",
    workerType="n1-standard-4",
    workerCount="2",
    evaluatorType="n1-standard-4",
    evaluatorCount="1",
    useChiefInTfConfig=True,
    args=["--lr=0.1"],
    jobDir="gs://bucket/job",
)
REDUCED = vertex(
    custom_job(
        package(
            executorImageUri=TENSORFLOW, env=[{"name": "PYTHONPATH", "value": "/own:$(PYTHONPATH)"}]
        ),
        container(imageUri=CUSTOM_IMAGE) | {"machineSpec": {"machineType": "n1-standard-8"}},
        container(imageUri=REDUCER)
        | {"machineSpec": {"machineType": "n1-highcpu-16"}, "replicaCount": "2"},
        container(imageUri=CUSTOM_IMAGE),
    )
)
TRIAL = package(
    executorImageUri=TENSORFLOW, args=["--out", "$(AIP_MODEL_DIR)", "--learning_rate", "0.01"]
)
VERTEX_TRIAL = replace(
    vertex(
        custom_job(
            TRIAL,
            TRIAL,
            baseOutputDirectory={"outputUriPrefix": "gs://bucket/out/12/"},
        )
    ),
    trial="12",
)
ML_TRIAL = replace(
    ml(
        args=["--x", "1", "--learning_rate", "0.01"],
        jobDir="gs://bucket/job/3",
        scaleTier="CUSTOM",
        masterType="n1-standard-4",
        workerType="n1-standard-4",
        workerCount="1",
    ),
    trial="3",
    metric_tag="census_loss",
)
PLANS: dict[str, tuple[JobSpec, tuple[ReplicaId, ...]]] = {
    "vertex_pools_with_gap": (FOUR_POOLS, FOUR_POOLS.replicas()),
    "vertex_single_container": (SINGLE, SINGLE.replicas()),
    "ml_basic": (BASIC, BASIC.replicas()),
    "ml_custom_13_replicas": (THIRTEEN, (PRIMARY, ReplicaId(1, 8), ReplicaId(2, 2))),
    "ml_containers_with_chief": (CONTAINERS, CONTAINERS.replicas()),
    "vertex_trial_of_two_replicas": (VERTEX_TRIAL, VERTEX_TRIAL.replicas()),
    "ml_trial": (ML_TRIAL, ML_TRIAL.replicas()),
    "vertex_with_reducers": (REDUCED, REDUCED.replicas()),
}


@pytest.mark.parametrize("name", PLANS)
def test_launch_is_as_recorded(name: str) -> None:
    """spec/program#arguments: every variable and argument of these jobs, byte for byte."""
    spec, replicas = PLANS[name]
    shown = json.dumps({str(r): launch(spec, r) for r in replicas}, indent=1, ensure_ascii=False)
    recorded = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        recorded.write_text(shown + "\n", "utf-8")
    assert shown + "\n" == recorded.read_text("utf-8")


def test_every_recorded_launch_has_its_test() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(PLANS)


def cluster_of(spec: JobSpec, replica: ReplicaId) -> dict[str, Any]:
    found = cluster_spec(spec, gang(spec).endpoints, replica)
    assert found is not None
    return found


def config_of(spec: JobSpec, replica: ReplicaId) -> dict[str, Any] | None:
    return tf_config(spec, gang(spec).endpoints, replica, project_id="project-1")


@pytest.mark.parametrize(
    ("version", "python", "name"),
    [
        ("1.15", "3.7", "master"),
        ("2.1", "3.7", "chief"),
        ("2.6", "3.7", "chief"),
        (None, None, "chief"),
    ],
)
def test_ml_always_has_tf_config(version: str | None, python: str | None, name: str) -> None:
    """spec/program: chief from runtime 2.1 on, master before; the default runtime counts as the newest."""
    spec = ml(runtimeVersion=version, pythonVersion=python)
    config = config_of(spec, PRIMARY)
    assert config is not None
    assert list(config["cluster"]) == [name]
    assert config["task"]["type"] == name
    assert config["task"]["cloud"].endswith("-ml")
    assert hostname(UID, spec, PRIMARY).startswith(f"cmle-training-{name}-")
    assert cluster_spec(spec, gang(spec).endpoints, PRIMARY) is None


@pytest.mark.parametrize(("flag", "name"), [(True, "chief"), (False, "master"), (None, "master")])
def test_ml_containers_choose_their_chief(flag: bool | None, name: str) -> None:
    """spec/program#cluster_spec: by useChiefInTfConfig, in TF_CONFIG and in CLUSTER_SPEC, which only
    containers get."""
    spec = ml_container(useChiefInTfConfig=flag)
    assert list(cluster_of(spec, PRIMARY)["cluster"]) == [name]
    config = config_of(spec, PRIMARY)
    assert config is not None
    assert list(config["cluster"]) == [name]


def test_the_flag_means_nothing_without_a_container() -> None:
    """facts/program#tf_config."""
    config = config_of(ml(runtimeVersion="1.15", useChiefInTfConfig=True), PRIMARY)
    assert config is not None
    assert list(config["cluster"]) == ["master"]


def test_reducers_are_in_cluster_spec_only() -> None:
    """spec/program#tf_config: no `ps` in TF_CONFIG, no rank."""
    four = vertex(custom_job(TWO_WORKERS, TWO_WORKERS, TWO_WORKERS))
    reducer = Program(four.pool(2).program.runtime, image_uri=REDUCER)
    pools = (*four.pools[:2], replace(four.pool(2), program=reducer))
    spec = replace(four, pools=pools)
    assert "workerpool2" in cluster_of(spec, SERVER)["cluster"]
    assert config_of(spec, SERVER) is None
    worker = config_of(spec, WORKER)
    assert worker is not None
    assert set(worker["cluster"]) == {"chief", "worker"}
    assert rank(spec, SERVER) is None
    assert "RANK" not in environ(spec, SERVER)
    servers = config_of(four, SERVER)
    assert servers is not None
    assert servers["task"]["type"] == "ps"


def test_hostnames_are_the_jobs_own() -> None:
    """spec/program#hostnames: one id for all replicas of a job, another one for the next job."""
    names = [hostname(UID, FOUR_POOLS, replica) for replica in FOUR_POOLS.replicas()]
    assert len(set(names)) == 4
    assert len({name.split("-")[3] for name in names}) == 1
    assert hostname(JobUid(8), FOUR_POOLS, PRIMARY) not in names


def test_gpus() -> None:
    """spec/queue#capacity, spec/machines#gpus: assigned devices only, and none at all on a host that has
    none."""
    assert dict(environment(gang(SINGLE), PRIMARY))["CUDA_VISIBLE_DEVICES"] == ""
    given = dict(environment(gang(SINGLE), PRIMARY, cuda_devices="0,1"))
    assert given["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_the_users_variables_win() -> None:
    spec = vertex(custom_job(container(env=[{"name": "WORLD_SIZE", "value": "$(WORLD_SIZE)0"}])))
    assert environ(spec, PRIMARY)["WORLD_SIZE"] == "10"


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)$(A)y", "x11y"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$$(A)"),
        ("$(B)", "$(B)"),
        ("$A ${A} $$ $(", "$A ${A} $$ $("),
        ("$(date +%s)", "$(date +%s)"),
        ("$($(A))", "$(1)"),
    ],
)
def test_expansion(text: str, expanded: str) -> None:
    """facts/program#variables."""
    assert expand(text, {"A": "1"}) == expanded


def test_a_newer_framework_does_as_the_one_that_was_asked_for() -> None:
    """spec/runtimes#substitutes: by a variable, which the user can set otherwise, or say the opposite."""
    old_way = OldWay("LOADS_ALL", "1", unless="LOADS_LITTLE")

    def given(env: tuple[tuple[str, str], ...] = ()) -> dict[str, str]:
        pool = SINGLE.pools[0]
        runtime = replace(pool.program.runtime, old_ways=(old_way,))
        program = replace(pool.program, runtime=runtime, env=env)
        return environ(replace(SINGLE, pools=(replace(pool, program=program),)), PRIMARY)

    assert given()["LOADS_ALL"] == "1"
    assert given((("LOADS_ALL", "0"),))["LOADS_ALL"] == "0"
    assert "LOADS_ALL" not in given((("LOADS_LITTLE", "1"),))


def test_environment_is_a_list_of_distinct_printable_pairs() -> None:
    for spec, replicas in PLANS.values():
        for replica in replicas:
            names = [name for name, _ in environment(gang(spec), replica)]
            assert len(names) == len(set(names))


def test_the_metrics_file_is_where_the_service_looks_for_it() -> None:
    """spec/program#metrics-file: of the user's variables this one does not win, or nothing of the trial would
    ever be seen."""
    env = [{"name": "CLOUD_ML_HP_METRIC_FILE", "value": "/tmp/mine"}]
    spec = vertex(custom_job(container(env=env)))
    assert environ(spec, PRIMARY)["CLOUD_ML_HP_METRIC_FILE"] == "/tmp/mine"
    trial = replace(spec, trial="1")
    assert environ(trial, PRIMARY)["CLOUD_ML_HP_METRIC_FILE"] == "/var/hypertune/output.metrics"


def plans(spec: JobSpec) -> tuple[LaunchPlan, ...]:
    """Of all replicas of a job whose pools have one runtime."""
    replicas = tuple(Replica(r, node="node", incarnation=1) for r in spec.replicas())
    subject = replace(job(1), spec=spec, replicas=replicas, attempt=1)
    slots = [Slot(r.id, "node", str(r.id), str(r.id), "", 2222) for r in replicas]
    program = spec.pools[0].program
    prepared = {(program.runtime, program.packages): PreparedRuntime("")}
    return launch_plans(subject, slots, prepared, LaunchDefaults(), {r.id: 1 for r in replicas})


def test_a_slot_is_asked_for_with_the_memory_that_its_replica_gets() -> None:
    """Clusters hold that much for it: an operator's `memory_per_replica` counts there as well."""
    own = replace(job(1), replicas=(Replica(ReplicaId(0, 0), node="node", incarnation=1),))
    promised = own.spec.pools[0].machine.memory_limit_bytes
    (whole,) = slot_requests(own, LaunchDefaults())
    (capped,) = slot_requests(own, LaunchDefaults(memory_cap=1 << 20))
    assert whole.memory_bytes == promised > capped.memory_bytes == 1 << 20


def test_each_replica_has_the_disk_of_its_pool() -> None:
    """spec/machines#disk: 100 GB unless the job says otherwise; it is watched by this size."""
    first, second = job(1, 2).spec.pools
    pools = (first, replace(second, disk=Disk(size_gb=300)))
    spec = replace(job(1, 2).spec, pools=pools)
    assert [plan.limits.disk >> 30 for plan in plans(spec)] == [100, 300, 300]


def test_only_the_primary_of_a_trial_is_watched_for_metrics() -> None:
    """spec/tuning#measurements, facts/tuning#metrics."""

    def watched(trial: str) -> list[bool]:
        spec = replace(job(1, 2).spec, trial=trial)
        return [plan.watch_metrics for plan in plans(spec)]

    assert watched("1") == [True, False, False]
    assert watched("") == [False, False, False]
