"""References to secrets in jobs, and their placeholders in launch plans (spec/operations#secrets,
spec/invariants#secrets)."""

import json

import pytest

from tests.unit.specs_requests import container, custom_job, rejected_fields, vertex
from trainshed.core.cluster import Endpoint
from trainshed.core.environment import PlacedAttempt, arguments, environment
from trainshed.core.job import JobSpec
from trainshed.core.names import Api, JobName, ReplicaId
from trainshed.core.secrets import (
    MAX_VALUE_BYTES,
    SecretRef,
    markers_in,
    name_fault,
    referenced_secrets,
    references,
    resolve,
    value_fault,
)

PRIMARY = ReplicaId(0, 0)
VALUES = {SecretRef("db"): "hunter2 $(HOME)", SecretRef("api-key", 3): "k3y"}


def parse_spec(env: dict[str, str], *args: str) -> JobSpec:
    spec = {"args": list(args), "env": [{"name": n, "value": v} for n, v in env.items()]}
    return vertex(custom_job(container(**spec)))


def launch_of(env: dict[str, str], *args: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return (argv, environ) of the launch plan of the primary."""
    name = JobName(Api.VERTEX, "p", "us-central1", "7")
    spec = parse_spec(env, *args)
    gang = PlacedAttempt(name, spec, {PRIMARY: Endpoint("h", 2222)}, 3333)
    environ = dict(environment(gang, PRIMARY))
    return arguments(spec, PRIMARY, environ), environ


def violations(env: dict[str, str], *args: str) -> dict[str, str]:
    return rejected_fields(lambda: parse_spec(env, *args))


def test_launch_plan_contains_only_secret_names_and_the_program_gets_the_values() -> None:
    argv, environ = launch_of(
        {"DB": "postgres://me:$(secret:db)@host", "KEY": "$(secret:api-key@3)", "BOTH": "$(DB)/$(KEY)"},
        "--dsn=$(DB)",
        "$$(DB)",
    )
    assert "hunter2" not in repr((argv, environ))
    assert markers_in(environ["BOTH"]) == (SecretRef("db"), SecretRef("api-key", 3))
    assert referenced_secrets(argv, environ.items()) == set(VALUES)
    shown, variables, masked = resolve(argv, tuple(environ.items()), VALUES)
    assert dict(variables)["BOTH"] == "postgres://me:hunter2 $(HOME)@host/k3y"
    assert shown[-2:] == ("--dsn=postgres://me:hunter2 $(HOME)@host", "$(DB)")
    assert sorted(masked) == ["hunter2 $(HOME)", "k3y"]


def test_cluster_spec_contains_secret_references_not_values() -> None:
    """CLUSTER_SPEC and similar variables contain the job as the user submitted it."""
    argv, environ = launch_of({"DB": "$(secret:db)"})
    _, variables, _ = resolve(argv, tuple(environ.items()), VALUES)
    described = json.loads(dict(variables)["CLUSTER_SPEC"])["job"]
    assert "$(secret:db)" in json.dumps(described)
    assert [name for name, value in variables if "hunter2" in value] == ["DB"]


def test_escaped_secret_reference_is_passed_as_plain_text() -> None:
    _, environ = launch_of({"TEXT": "$$(secret:db)", "BOTH": "$$(secret:db) $(secret:db)"})
    assert environ["TEXT"] == "$(secret:db)"
    assert markers_in(environ["BOTH"]) == (SecretRef("db"),)


def test_launch_plan_without_secrets_is_unchanged() -> None:
    argv, environ = launch_of({"A": "$(HOME) $(sécret:db)"}, "x")
    rows = tuple(environ.items())
    assert referenced_secrets(argv, rows) == set()
    assert resolve(argv, rows, {}) == (argv, rows, ())


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("$(secret:)", "'' is not the name of a secret"),
        ("$(secret:1st)", "'1st' is not the name of a secret"),
        ("$(secret:db@0)", "'0' is not a version"),
        ("$(secret:db@latest)", "'latest' is not a version"),
        ("x $(secret:db", "without a closing parenthesis"),
        ("$(secret:$(NAME))", "without a closing parenthesis"),
        ("\ufdd0db\ufdd1", "U+FDD0"),
    ],
)
def test_error_of_an_invalid_secret_reference_names_the_environment_variable(value: str, fault: str) -> None:
    """spec/submit#refusals: the error names every invalid field."""
    faults = violations({"GOOD": "$(secret:db)", "BAD": value})
    assert list(faults) == ["job_spec.worker_pool_specs[0].container_spec.env[1].value"]
    assert fault in faults["job_spec.worker_pool_specs[0].container_spec.env[1].value"]


def test_secret_reference_in_an_argument_is_rejected() -> None:
    """Every user of the machine can read command lines. A job can refer to a variable instead."""
    faults = violations({}, "$$(secret:db)", "--key=$(secret:db)", "\ufdd0db\ufdd1")
    field = "job_spec.worker_pool_specs[0].container_spec.args"
    assert list(faults) == [f"{field}[1]", f"{field}[2]"]
    assert "$(VARIABLE)" in faults[f"{field}[1]"]


def test_secret_markers_in_variables_of_an_image_are_not_replaced_by_secrets() -> None:
    """Secret markers count only in environment variables of the job. Elsewhere they are plain text."""
    name, mark = JobName(Api.VERTEX, "p", "us-central1", "7"), "\ufdd0db\ufdd1"
    spec = parse_spec({"OWN": "$(FROM_IMAGE)"})
    gang = PlacedAttempt(name, spec, {PRIMARY: Endpoint("h", 2222)}, 3333)
    environ = environment(gang, PRIMARY, image={"FROM_IMAGE": mark})
    argv = arguments(spec, PRIMARY, dict(environ), entrypoint=("run", mark), command=(mark,))
    assert referenced_secrets(argv, environ) == set()
    assert mark not in "".join((*argv, *(value for _, value in environ)))


def test_secret_references_are_found_in_text() -> None:
    text = "$(secret:a) $$(secret:b) $(secret:c@12) $(secret:bad name) $(d)"
    assert list(references(text)) == [SecretRef("a"), SecretRef("c", 12)]


@pytest.mark.parametrize("name", ["", "1a", "a b", "a@1", "a/b", "ä", "a" * 256])
def test_invalid_secret_name_is_rejected(name: str) -> None:
    fault = name_fault(name)
    assert fault and "is not the name of a secret" in fault
    assert not name_fault("a" * 255)


@pytest.mark.parametrize("value", ["xyz", "  q  ", "a\0bcd", "abcd\ud800", "é" * (MAX_VALUE_BYTES // 2 + 1)])
def test_invalid_secret_value_error_does_not_contain_the_value(value: str) -> None:
    fault = value_fault(value)
    assert fault and value.strip() not in fault
    assert not value_fault("é" * (MAX_VALUE_BYTES // 2))
