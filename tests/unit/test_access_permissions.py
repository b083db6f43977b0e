"""The permission table: a row for every handler, and nothing without one."""

import re
from pathlib import Path

import pytest

from trainshed.access.permissions import PERMISSIONS, ROLES, authorize
from trainshed.access.principals import Principal, Role
from trainshed.api import metrics, projects
from trainshed.api.registry import handlers
from trainshed.api.trainshed_v1.transport import METHODS
from trainshed.core.errors import PermissionDenied
from trainshed.core.names import project_number
from trainshed.wire import pool
from trainshed.wire.routes import rpcs

DOCS = Path(__file__).parents[2] / "docs"
OWNER = Principal("owner@example.com")


def test_every_handler_has_a_row_and_every_row_a_handler() -> None:
    served = {
        *handlers(),
        *(method.name for method in METHODS.values()),
        projects.METHOD,
        metrics.METHOD,
    }
    assert served == set(PERMISSIONS)


def test_every_handler_is_a_method_of_a_public_service() -> None:
    known = {f"{rpc.service}.{rpc.method}" for api in pool.APIS for rpc in rpcs(api).values()}
    assert set(handlers()) <= known


def test_each_method_of_ours_answers_in_exactly_one_way() -> None:
    for method in METHODS.values():
        assert (method.answer is None) != (method.stream is None), method.name


def test_an_owner_may_call_everything_that_has_a_row() -> None:
    for method in PERMISSIONS:
        authorize(OWNER, method)


def test_a_method_without_a_row_is_denied_with_its_name() -> None:
    with pytest.raises(PermissionDenied, match=r"no\.such\.Method"):
        authorize(OWNER, "no.such.Method")


def test_every_role_is_defined() -> None:
    assert set(ROLES) == set(Role)


def test_pages_speak_of_no_role_that_there_is_not() -> None:
    """docs/metrics.md once had Prometheus use a role that kept the service from starting."""
    pages = {path.name: path.read_text() for path in DOCS.glob("*.md")}
    assert "There are two roles." in pages["security.md"] and len(Role) == 2
    for name, text in pages.items():
        assert {*re.findall(r"\brole `(\w+)`", text)} <= {*Role}, name
        assert not re.search(r"\btokens? with (a )?roles?\b", text), name


def test_every_role_may_ask_what_it_may_do() -> None:
    for held_by_role in ROLES.values():
        assert {"aiplatform.permissions.test", "ml.permissions.test"} <= held_by_role


@pytest.mark.parametrize(
    "permission",
    [
        "aiplatform.customJobs.delete",
        "aiplatform.hyperparameterTuningJobs.delete",
        "aiplatform.trainingPipelines.delete",
        "ml.jobs.update",
        "aiplatform.persistentResources.create",
        "trainshed.jobs.cancel",
        "trainshed.jobs.delete",
        "trainshed.jobs.drill",
        "trainshed.nodes.drain",
        "trainshed.quotas.set",
    ],
)
def test_a_program_removes_no_jobs_and_changes_nothing_of_the_service(permission: str) -> None:
    """spec/program#credentials: default credentials of a job."""
    assert permission not in ROLES[Role.JOB]


def test_who_works_in_one_project_is_denied_what_lies_elsewhere() -> None:
    program = Principal("trainer@p1.example", Role.JOB, "p1")
    method = "google.cloud.aiplatform.v1.JobService.GetCustomJob"
    number = str(project_number("p1"))
    authorize(program, method)
    authorize(program, method, ["p1", number])
    with pytest.raises(PermissionDenied, match=r"project p1 only, and the request names p2, p3:"):
        authorize(program, method, ["p1", "p2", "p3", "p2"])
    with pytest.raises(PermissionDenied, match=r"names no project:"):
        authorize(program, method, [])
    authorize(OWNER, method, ["p2"])
    authorize(program, "trainshed.v1.Service.GetStatus", [])
