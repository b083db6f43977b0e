"""Tests of jobs whose specification exceeds the size of an environment variable
(spec/program#cluster_spec)."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.unit.specs_requests import (
    FakeRuntimes,
    custom_job,
    ml,
    ml_job,
    package,
    pool,
    rejected_fields,
    vertex,
)
from tests.unit.specs_vertex import variables, violations
from tests.unit.test_cluster_launch import environ
from trainshed.core.environment import arguments
from trainshed.core.job import JobSpec
from trainshed.core.names import ReplicaId
from trainshed.core.specs.ml import parse_job

LONG = "é" * 45_000
"""90,000 bytes."""
NOTICE = "too long for one variable"
PACKAGE = "job_spec.worker_pool_specs[0].python_package_spec"
TWO_LONG: dict[str, JobSpec] = {
    "arguments": vertex(custom_job(package(args=[LONG]), package(args=[LONG]))),
    "variables": vertex(custom_job(package(env=variables({"A": LONG})), package(env=variables({"A": LONG})))),
    "many arguments": vertex(custom_job(package(args=['"'] * 90_000), package(args=["x"]))),
    "ml": ml(
        scaleTier="CUSTOM",
        masterType="n1-standard-4",
        workerType="n1-standard-4",
        workerCount="1",
        args=[LONG, "x" * 45_000],
    ),
}


@pytest.mark.parametrize("what", TWO_LONG)
@pytest.mark.parametrize("replica", [ReplicaId(0, 0), ReplicaId(1, 0)])
def test_job_specification_is_omitted_from_variables_if_it_exceeds_the_length_limit(
    what: str, replica: ReplicaId
) -> None:
    spec = TWO_LONG[what]
    assert any(NOTICE in warning for warning in spec.warnings)
    values = environ(spec, replica)
    for name in ("CLUSTER_SPEC", "TF_CONFIG"):
        if name in values:
            assert json.loads(values[name]).keys() == {"cluster", "environment", "task"}
    assert isinstance(json.loads(values["CLOUD_ML_JOB"]), dict)
    argv = arguments(spec, replica, values)
    program = [sys.executable, "-c", "import sys; print(len(sys.argv))", *argv[1:]]
    run = subprocess.run(program, env=os.environ | values, capture_output=True, check=True)
    assert int(run.stdout) == len(argv)


def test_job_specification_below_the_length_limit_is_in_the_cluster_spec_variable() -> None:
    spec = vertex(custom_job(package(args=["x" * 90_000]), package()))
    assert not any(NOTICE in warning for warning in spec.warnings)
    assert json.loads(environ(spec, ReplicaId(1, 0))["CLUSTER_SPEC"])["job"]["workerPoolSpecs"]


@pytest.mark.parametrize(
    ("values", "field"),
    [({"V" * 100_000: "x" * 50_000}, "env[0].value"), ({f"V{n}": "x" * 100_000 for n in range(7)}, "env")],
)
def test_job_with_environment_variables_above_the_kernel_limit_is_rejected(
    values: dict[str, str], field: str
) -> None:
    (fault,) = violations(custom_job(package(env=variables(values)))).items()
    assert fault[0] == f"{PACKAGE}.{field}"
    assert "bucket" in fault[1]


def test_job_with_too_many_replicas_for_the_cluster_variables_is_rejected() -> None:
    many: dict[str, Any] = {"replicaCount": "1990"}
    faults = violations(custom_job(pool(), pool(**many)))
    assert "1991 replicas" in faults.pop("job_spec.worker_pool_specs")
    assert not faults
    machines = dict.fromkeys(("masterType", "workerType"), "n1-standard-4")
    request = ml_job(scaleTier="CUSTOM", **machines, workerCount="1990")
    faults = rejected_fields(lambda: parse_job(request, runtimes=FakeRuntimes()))
    assert list(faults) == ["worker_count"]
