"""Launch of replicas: cluster description, ranks, environment, command line (spec/program#ranks,
facts/program).

Tests compare launches of whole jobs with files in tests/golden/launch. UPDATE_GOLDEN=1 rewrites these files.
"""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.unit.jobs import job
from tests.unit.specs_requests import (
    CUSTOM_IMAGE,
    GUIDE,
    NO_PACKAGE,
    REDUCER,
    SKLEARN,
    TENSORFLOW,
    container,
    custom_job,
    ml,
    package,
    vertex,
)
from trainshed.controller.launch_plans import stall_after
from trainshed.core.cluster import Endpoint, hostname
from trainshed.core.environment import PlacedAttempt, arguments, environment, expand
from trainshed.core.job import JobSpec
from trainshed.core.launch import STALL_LABEL
from trainshed.core.names import Api, JobName, JobUid, ReplicaId
from trainshed.core.runtime import OldWay
from trainshed.core.terminals import dashboard_port

GOLDEN = Path(__file__).parents[1] / "golden" / "launch"
UID = JobUid(7)
PRIMARY = ReplicaId(0, 0)
NESTED = ("CLUSTER_SPEC", "TF_CONFIG", "CLOUD_ML_JOB")


def gang(spec: JobSpec) -> PlacedAttempt:
    """Return an attempt of the job whose replicas have the addresses of their hostnames."""
    trial = f".{spec.trial}" if spec.trial else ""
    name = (
        JobName(Api.VERTEX, "project-1", "us-central1", "42")
        if spec.api is Api.VERTEX
        else JobName(Api.ML, "project-1", "", f"job_1{trial}")
    )
    endpoints = {r: Endpoint(hostname(UID, spec, r), 2222) for r in spec.replicas()}
    return PlacedAttempt(name, spec, endpoints, 23456, UID)


def environ(spec: JobSpec, replica: ReplicaId) -> dict[str, str]:
    return dict(environment(gang(spec), replica, packages="/cache/reduction/1"))


def launch(spec: JobSpec, replica: ReplicaId) -> dict[str, Any]:
    """Return the launch of a replica as readable JSON, with variables that contain JSON parsed."""
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
    env=[{"name": "RUN", "value": "run of $(CLOUD_ML_JOB_ID)"}, {"name": "AGAIN", "value": "$(RUN)!"}],
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
SINGLE = vertex(custom_job(container(imageUri=SKLEARN, command=["sh", "-c"], args=["echo $$ $(date)"])))
BASIC = ml(
    runtimeVersion=None, pythonVersion=None, args=["--x", "$(HOME)", "--", "a b"], jobDir="gs://bucket/job"
)
THIRTEEN = ml(**GUIDE)
CONTAINERS = ml(
    **NO_PACKAGE,
    masterConfig={"imageUri": CUSTOM_IMAGE},
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
        package(executorImageUri=TENSORFLOW, env=[{"name": "PYTHONPATH", "value": "/own:$(PYTHONPATH)"}]),
        container(imageUri=CUSTOM_IMAGE) | {"machineSpec": {"machineType": "n1-standard-8"}},
        container(imageUri=REDUCER) | {"machineSpec": {"machineType": "n1-highcpu-16"}, "replicaCount": "2"},
        container(imageUri=CUSTOM_IMAGE),
    )
)
TRIAL = package(executorImageUri=TENSORFLOW, args=["--out", "$(AIP_MODEL_DIR)", "--learning_rate", "0.01"])
VERTEX_TRIAL = replace(
    vertex(custom_job(TRIAL, TRIAL, baseOutputDirectory={"outputUriPrefix": "gs://bucket/out/12/"})),
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
def test_launch_variables_and_arguments_equal_the_recorded_golden_file(name: str) -> None:
    """spec/program#arguments: all variables and arguments of these jobs are compared byte by byte."""
    spec, replicas = PLANS[name]
    shown = json.dumps({str(r): launch(spec, r) for r in replicas}, indent=1, ensure_ascii=False)
    recorded = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        recorded.write_text(shown + "\n", "utf-8")
    assert shown + "\n" == recorded.read_text("utf-8")


def test_every_golden_launch_file_has_a_test() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(PLANS)


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
def test_variable_references_in_arguments_are_expanded(text: str, expanded: str) -> None:
    """facts/program#variables: $(NAME) is replaced, and $$ escapes a reference."""
    assert expand(text, {"A": "1"}) == expanded


def test_newer_framework_gets_variables_that_restore_the_behaviour_of_the_requested_version() -> None:
    """spec/runtimes#substitutes: the user can override the variable or request the opposite behaviour."""
    old_way = OldWay("LOADS_ALL", "1", unless="LOADS_LITTLE")

    def variables_with(env: tuple[tuple[str, str], ...] = ()) -> dict[str, str]:
        pool = SINGLE.pools[0]
        runtime = replace(pool.program.runtime, old_ways=(old_way,))
        program = replace(pool.program, runtime=runtime, env=env)
        return environ(replace(SINGLE, pools=(replace(pool, program=program),)), PRIMARY)

    assert variables_with()["LOADS_ALL"] == "1"
    assert variables_with((("LOADS_ALL", "0"),))["LOADS_ALL"] == "0"
    assert "LOADS_ALL" not in variables_with((("LOADS_LITTLE", "1"),))


def test_stall_timeout_label_with_a_huge_number_can_be_encoded() -> None:
    patient = replace(job(), labels=((STALL_LABEL, "9" * 60),))
    assert msgspec.msgpack.encode(stall_after(patient))


def test_job_with_dashboard_access_gets_a_port() -> None:
    """spec/program#cluster_spec: all replicas of a job have the same port, and each job has its own."""
    spec = vertex(custom_job(container(), container(), enableDashboardAccess=True))
    ports = [json.loads(environ(spec, replica)["CLUSTER_SPEC"])["open_ports"] for replica in spec.replicas()]
    assert ports == [[dashboard_port(UID)]] * 2
    assert dashboard_port(UID) != dashboard_port(JobUid(UID + 1))
    assert 1024 <= dashboard_port(JobUid(2**63 - 1)) < 32768
