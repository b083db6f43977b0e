"""How jobs name secrets, and what stands in their place in a launch plan (spec/operations#secrets;
spec/invariants#secrets)."""

import json

import pytest

from tests.unit.specs_requests import container, custom_job, refused, vertex
from trainshed.core.cluster import Endpoint
from trainshed.core.environment import PlacedAttempt, arguments, environment
from trainshed.core.job import JobSpec
from trainshed.core.names import Api, JobName, ReplicaId
from trainshed.core.secrets import (
    MAX_VALUE_BYTES,
    SecretRef,
    markers_in,
    name_fault,
    named_in,
    references,
    resolved,
    value_fault,
)

PRIMARY = ReplicaId(0, 0)
VALUES = {SecretRef("db"): "hunter2 $(HOME)", SecretRef("api-key", 3): "k3y"}


def parsed(env: dict[str, str], *args: str) -> JobSpec:
    spec = {"args": list(args), "env": [{"name": n, "value": v} for n, v in env.items()]}
    return vertex(custom_job(container(**spec)))


def planned(env: dict[str, str], *args: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """(argv, environ) of the primary's launch plan."""
    name = JobName(Api.VERTEX, "p", "us-central1", "7")
    spec = parsed(env, *args)
    gang = PlacedAttempt(name, spec, {PRIMARY: Endpoint("h", 2222)}, 3333)
    environ = dict(environment(gang, PRIMARY))
    return arguments(spec, PRIMARY, environ), environ


def violations(env: dict[str, str], *args: str) -> dict[str, str]:
    return refused(lambda: parsed(env, *args))


def test_a_plan_names_the_secret_and_the_program_gets_its_value() -> None:
    argv, environ = planned(
        {
            "DB": "postgres://me:$(secret:db)@host",
            "KEY": "$(secret:api-key@3)",
            "BOTH": "$(DB)/$(KEY)",
        },
        "--dsn=$(DB)",
        "$$(DB)",
    )
    assert "hunter2" not in repr((argv, environ))
    assert markers_in(environ["BOTH"]) == (SecretRef("db"), SecretRef("api-key", 3))
    assert named_in(argv, environ.items()) == set(VALUES)
    shown, variables, masked = resolved(argv, tuple(environ.items()), VALUES)
    assert dict(variables)["BOTH"] == "postgres://me:hunter2 $(HOME)@host/k3y"
    assert shown[-2:] == ("--dsn=postgres://me:hunter2 $(HOME)@host", "$(DB)")
    assert sorted(masked) == ["hunter2 $(HOME)", "k3y"]


def test_what_describes_the_job_to_the_program_holds_the_notation() -> None:
    """CLUSTER_SPEC and its like are made of the job as it was given."""
    argv, environ = planned({"DB": "$(secret:db)"})
    _, variables, _ = resolved(argv, tuple(environ.items()), VALUES)
    described = json.loads(dict(variables)["CLUSTER_SPEC"])["job"]
    assert "$(secret:db)" in json.dumps(described)
    assert [name for name, value in variables if "hunter2" in value] == ["DB"]


def test_an_escaped_reference_is_text() -> None:
    _, environ = planned({"TEXT": "$$(secret:db)", "BOTH": "$$(secret:db) $(secret:db)"})
    assert environ["TEXT"] == "$(secret:db)"
    assert markers_in(environ["BOTH"]) == (SecretRef("db"),)


def test_a_plan_without_secrets_stays_as_it_is() -> None:
    argv, environ = planned({"A": "$(HOME) $(sécret:db)"}, "x")
    rows = tuple(environ.items())
    assert named_in(argv, rows) == set()
    assert resolved(argv, rows, {}) == (argv, rows, ())


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("$(secret:)", "'' is not the name of a secret"),
        ("$(secret:1st)", "'1st' is not the name of a secret"),
        ("$(secret:db@0)", "'0' is not a version"),
        ("$(secret:db@latest)", "'latest' is not a version"),
        ("x $(secret:db", "without an end"),
        ("$(secret:$(NAME))", "without an end"),
        ("\ufdd0db\ufdd1", "U+FDD0"),
    ],
)
def test_a_wrong_notation_names_its_variable(value: str, fault: str) -> None:
    """spec/submit#refusals: every offending field is named."""
    faults = violations({"GOOD": "$(secret:db)", "BAD": value})
    assert list(faults) == ["job_spec.worker_pool_specs[0].container_spec.env[1].value"]
    assert fault in faults["job_spec.worker_pool_specs[0].container_spec.env[1].value"]


def test_an_argument_cannot_name_a_secret_itself() -> None:
    """A command line can be read by everybody on the machine: whoever wants that says it by a variable."""
    faults = violations({}, "$$(secret:db)", "--key=$(secret:db)", "\ufdd0db\ufdd1")
    field = "job_spec.worker_pool_specs[0].container_spec.args"
    assert list(faults) == [f"{field}[1]", f"{field}[2]"]
    assert "$(VARIABLE)" in faults[f"{field}[1]"]


def test_an_image_cannot_choose_secrets_of_whoever_runs_it() -> None:
    """What looks like a mark, wherever it comes from but from a variable of the job, is none."""
    name, mark = JobName(Api.VERTEX, "p", "us-central1", "7"), "\ufdd0db\ufdd1"
    spec = parsed({"OWN": "$(FROM_IMAGE)"})
    gang = PlacedAttempt(name, spec, {PRIMARY: Endpoint("h", 2222)}, 3333)
    environ = environment(gang, PRIMARY, image={"FROM_IMAGE": mark})
    argv = arguments(spec, PRIMARY, dict(environ), entrypoint=("run", mark), command=(mark,))
    assert named_in(argv, environ) == set()
    assert mark not in "".join((*argv, *(value for _, value in environ)))


def test_references_are_those_that_count() -> None:
    text = "$(secret:a) $$(secret:b) $(secret:c@12) $(secret:bad name) $(d)"
    assert list(references(text)) == [SecretRef("a"), SecretRef("c", 12)]


@pytest.mark.parametrize("name", ["", "1a", "a b", "a@1", "a/b", "ä", "a" * 256])
def test_what_is_no_name(name: str) -> None:
    fault = name_fault(name)
    assert fault and "is not the name of a secret" in fault
    assert not name_fault("a" * 255)


@pytest.mark.parametrize(
    "value", ["xyz", "  q  ", "a\0bcd", "abcd\ud800", "é" * (MAX_VALUE_BYTES // 2 + 1)]
)
def test_what_is_no_value_is_refused_without_repeating_it(value: str) -> None:
    fault = value_fault(value)
    assert fault and value.strip() not in fault
    assert not value_fault("é" * (MAX_VALUE_BYTES // 2))
