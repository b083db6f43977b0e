"""Whose name jobs run in on a Slurm cluster (docs/slurm.md, "Whose identity jobs run as"). The users are
real, and known to the lab's machines alone."""

from collections.abc import Iterator

import pytest

from tests.e2e.running import Service, common_place, container_job
from tests.e2e.stories import timeline
from tests.slurm.lab import USERS, SlurmLab
from tests.slurm.whole import configure, service_on_login_node

_TOP = """
capacity = "relaxed"
memory_per_replica = 400
grace = 1
[[failure_rules]]
name = "internal_error"
back_off = [0.1, 0.2]
"""
_USERS = """
[engines.slurm.users]
vision = "lab-ada"
speech = "lab-bob"
lost = "lab-eve"
"""


@pytest.fixture(scope="module")
def service(slurm_lab: SlurmLab) -> Iterator[Service]:
    place = common_place()
    directory = configure(slurm_lab, "users", _TOP, _USERS, place=place, wrapped=False)
    with service_on_login_node(slurm_lab, directory) as started:
        yield started


def submitted(service: Service, project: str, script: str) -> str:
    jobs = f"/v1/projects/{project}/locations/us-central1/customJobs"
    return service.call("POST", jobs, container_job(script))["name"].rpartition("/")[2]


def test_a_projects_job_runs_as_its_user(service: Service) -> None:
    script = "import os; print(os.getuid(), os.getgid(), os.getgroups())"
    for project, user in (("vision", "lab-ada"), ("speech", "lab-bob")):
        job_id = submitted(service, project, script)
        assert service.finish(job_id)["state"] == "SUCCEEDED", timeline(service, job_id)
        number = USERS[user]
        assert service.lines(job_id) == [f"{number} {number} [{number}]"]


def test_a_project_that_nobody_can_run_is_told_so(service: Service) -> None:
    told = {
        "lost": "jobs of project lost run as lab-eve ([engines.slurm.users]), and the service's machine",
        "other": "no user is named whom jobs of project other run as",
    }
    for job_id, reason in [(submitted(service, p, "pass"), told) for p, told in told.items()]:
        assert service.finish(job_id)["state"] == "FAILED"
        assert reason in "\n".join(entry["message"] for entry in timeline(service, job_id))
