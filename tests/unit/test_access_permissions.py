"""The permission table: a row for every handler, and nothing without one."""

import pytest

from trainshed.access.permissions import PERMISSIONS, ROLES, authorize
from trainshed.access.principals import Principal, Role
from trainshed.api import metrics, projects
from trainshed.api.registry import handlers
from trainshed.api.trainshed_v1.transport import METHODS
from trainshed.core.errors import PermissionDenied
from trainshed.core.names import project_number

OWNER = Principal("owner@example.com")


def test_every_handler_has_a_row_and_every_row_a_handler() -> None:
    served = {
        *handlers(),
        *(method.name for method in METHODS.values()),
        projects.METHOD,
        metrics.METHOD,
    }
    assert served == set(PERMISSIONS)


def test_each_method_of_ours_answers_in_exactly_one_way() -> None:
    for method in METHODS.values():
        assert (method.answer is None) != (method.stream is None), method.name


def test_a_method_without_a_row_is_denied_with_its_name() -> None:
    with pytest.raises(PermissionDenied, match=r"no\.such\.Method"):
        authorize(OWNER, "no.such.Method")


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
