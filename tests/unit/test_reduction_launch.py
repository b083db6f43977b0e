"""Tests of the environment of workers and reducers (spec/reduction)."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.specs_requests import (
    CUSTOM_IMAGE,
    NO_PACKAGE,
    REDUCER,
    ReducingRuntimes,
    Request,
    container,
    custom_job,
    ml,
    package,
    pool,
    vertex,
)
from trainshed.access.job_tokens import JobTokens
from trainshed.core import secrets
from trainshed.core.cluster import Endpoint
from trainshed.core.environment import REDUCER_PROGRAM, PlacedAttempt, arguments, environment
from trainshed.core.errors import InvalidRequest
from trainshed.core.job import JobSpec
from trainshed.core.names import Api, JobName, JobUid, ReplicaId
from trainshed.core.runtime import CONTAINER, RuntimeChoice
from trainshed.core.specs.vertex import parse_custom_job
from trainshed_reduction.variables import LISTEN, REDUCERS

PRIMARY, WORKER, FIRST, EVALUATOR = (ReplicaId(position, 0) for position in range(4))


def reducers(machine: str = "n1-highcpu-16", **spec: Any) -> Request:
    return container(imageUri=REDUCER, **spec) | {
        "machineSpec": {"machineType": machine},
        "replicaCount": "2",
    }


def parse_job(*pools: Request) -> JobSpec:
    return vertex(custom_job(*pools))


def environ(
    spec: JobSpec, replica: ReplicaId, *, image: Mapping[str, str] | None = None, **changes: Any
) -> dict[str, str]:
    name = JobName(Api.VERTEX, "project-1", "us-central1", "42")
    endpoints = {r: Endpoint(str(r), 2222) for r in spec.replicas()}
    gang = replace(PlacedAttempt(name, spec, endpoints, 3333, JobUid(7)), **changes)
    return dict(environment(gang, replica, image=image, packages="/packages"))


THREE = parse_job(package(), pool(), reducers(), package())
TOKEN_MARK = secrets.job_mark(7)


def test_reduction_variables_of_the_user_take_precedence_except_for_the_token() -> None:
    """spec/reduction#security: With another token, the reducers would reject the worker."""
    own = {
        "TRAINSHED_REDUCERS": "mine:1",
        "TRAINSHED_REDUCTION": "off",
        "TRAINSHED_REDUCTION_TOKEN": "guessed",
        "TRAINSHED_REDUCTION_TOKEN_FILE": "/etc/hostname",
        "PYTHONPATH": "/own:$(PYTHONPATH)",
    }
    env = [{"name": name, "value": value} for name, value in own.items()]
    spec = parse_job(container(imageUri=CUSTOM_IMAGE, env=env), pool(), reducers())
    variables = environ(spec, PRIMARY, image={"PYTHONPATH": "/of/image"})
    assert variables["PYTHONPATH"] == "/packages:/own:/of/image"
    assert variables["TRAINSHED_REDUCERS"] == "mine:1"
    assert variables["TRAINSHED_REDUCTION"] == "off"
    assert variables["TRAINSHED_REDUCTION_TOKEN"] == TOKEN_MARK
    assert "TRAINSHED_REDUCTION_TOKEN_FILE" not in variables


def test_job_that_sets_the_reduction_token_placeholder_is_rejected() -> None:
    """spec/reduction#security: The token is inserted together with the job's secrets, and masked in the same
    places (spec/operations#secrets)."""
    (ref,) = secrets.markers_in(environ(THREE, WORKER)["TRAINSHED_REDUCTION_TOKEN"])
    assert (ref.job_uid, secrets.SecretRef("db").job_uid) == (7, 0)
    _, resolved, masked = secrets.resolve((), (("T", TOKEN_MARK),), {ref: "value"})
    assert (resolved, masked) == ((("T", "value"),), ("value",))
    with pytest.raises(ValueError, match="is not the name of a secret"):
        secrets.SecretRef.parse(ref.name)
    env = [{"name": "A", "value": f"$(secret:{ref.name})"}]
    with pytest.raises(Exception, match="is not a secret"):
        parse_job(package(env=env), pool(), reducers())


def test_reduction_token_is_stable_across_restarts_and_differs_between_jobs() -> None:
    """spec/reduction#security: A restarted reducer accepts the workers of its job, but not those of other
    jobs or services."""
    first, other = JobTokens(b"a" * 32, lambda: 0), JobTokens(b"b" * 32, lambda: 10**18)
    assert first.reduction_token(7) == JobTokens(b"a" * 32, lambda: 10**18).reduction_token(7)
    tokens = {first.reduction_token(7), first.reduction_token(8), other.reduction_token(7)}
    assert {len(token) for token in tokens} == {64}
    assert len(tokens) == 3


def test_reducers_ignore_command_and_args_set_by_gcloud_and_the_job_gets_a_notice() -> None:
    """spec/reduction: gcloud sets --command and --args in every pool. Reducers run their own program, and the
    job gets a notice."""
    spec = parse_job(package(), pool(), reducers(command=["python3"], args=["--epochs=3"]))
    program = spec.pool(2).program
    assert (program.command, program.args) == ((), ())
    assert "--command and --args" in program.runtime.notices[0]
    assert arguments(spec, FIRST, environ(spec, FIRST)) == REDUCER_PROGRAM
    assert parse_job(package(), pool(), reducers()).pool(2).program.runtime.notices == ()


def test_reducer_image_mapped_by_the_operator_runs_the_program_of_the_mapped_image() -> None:
    """spec/runtimes#substitutes: The image map takes precedence. The program gets the same variables and the
    package."""

    class Mapping(ReducingRuntimes):
        def for_image(self, image_uri: str) -> Any:
            if image_uri == REDUCER:
                return RuntimeChoice(CONTAINER, "", "", image="mine:v1")
            return super().for_image(image_uri)

    request = custom_job(package(), pool(), reducers(args=["--fast"]))
    spec = parse_custom_job(request, region="us-central1", runtimes=Mapping()).spec
    variables = environ(spec, FIRST)
    assert variables[LISTEN] == "workerpool2-0:2222"
    assert arguments(spec, FIRST, variables, entrypoint=("/reduce",)) == ("/reduce", "--fast")


def test_ml_job_reducers_are_parameter_servers_with_the_reducer_image() -> None:
    """spec/submit#ml-jobs: parameter servers with this image are reducers. They do not get the arguments of
    the other roles (spec/reduction#reports)."""
    spec = ml(
        **NO_PACKAGE,
        scaleTier="CUSTOM",
        masterType="n1-standard-4",
        masterConfig={"imageUri": CUSTOM_IMAGE},
        parameterServerType="n1-highcpu-16",
        parameterServerCount="2",
        parameterServerConfig={"imageUri": REDUCER},
        args=["--lr=0.1"],
        jobDir="gs://bucket/job",
    )
    assert arguments(spec, FIRST, environ(spec, FIRST)) == REDUCER_PROGRAM
    assert environ(spec, PRIMARY)[REDUCERS] == "workerpool2-0:2222,workerpool2-1:2222"


@pytest.mark.parametrize(
    ("pools", "field"),
    [
        ((package(), reducers()), "[1].container_spec.image_uri"),
        (
            (package(), pool(), package(executorImageUri=REDUCER)),
            "[2].python_package_spec.executor_image_uri",
        ),
    ],
)
def test_reducers_outside_the_third_pool_are_rejected(pools: tuple[Request, ...], field: str) -> None:
    """spec/submit#vertex-jobs: The error contains the field to change."""
    with pytest.raises(InvalidRequest) as refused:
        parse_job(*pools)
    (violation,) = refused.value.violations
    assert violation.field == f"job_spec.worker_pool_specs{field}"
    assert "third worker pool" in violation.description
