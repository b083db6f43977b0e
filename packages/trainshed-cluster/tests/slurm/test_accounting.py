"""What Slurm's accounting refuses or makes wait, as a user of the service is told it (docs/slurm.md): real
associations and limits, kept by a real slurmdbd."""

from collections.abc import Iterator

import pytest

from tests.e2e.running import CUSTOM_JOBS, PROJECT, Service, common_place, container_job
from tests.e2e.stories import timeline
from tests.slurm.accounting import AccountedLab, why_no_accounting
from tests.slurm.lab import why_not
from tests.slurm.whole import configure, service_on

pytestmark = (
    pytest.mark.soak
)  # A database; the words of reasons are proved in unit/test_reasons.py.

_ACCOUNTS = """
[engines.slurm.accounts]
known = "research"
unknown = "nobody-knows"
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccountedLab]:
    if reason := why_not() or why_no_accounting():
        pytest.skip(f"NOT TESTED: Slurm's accounting: {reason}")
    opened = AccountedLab(tmp_path_factory.mktemp("accounted"), [common_place()])
    with opened:
        yield opened


@pytest.fixture(scope="module")
def service(lab: AccountedLab) -> Iterator[Service]:
    with service_on(lab, configure(lab, "accounted", slurm=_ACCOUNTS)) as started:
        yield started


def submitted(service: Service, project: str) -> str:
    path = CUSTOM_JOBS.replace(PROJECT, project)
    return service.call("POST", path, container_job("print('ran')"))["name"].rpartition("/")[2]


def awaited_reason(service: Service, job_id: str) -> str:
    """What it is told to wait for, once that is Slurm's doing."""
    for view in service.watch(job_id, 60):
        for wait in view["waits"]:
            if "Slurm" in wait:
                return wait
    raise AssertionError(timeline(service, job_id))


def test_an_account_that_is_not_the_users_fails_the_job_in_slurms_words(service: Service) -> None:
    job_id = submitted(service, "unknown")
    view = service.finish(job_id, 60)
    assert view["state"] == "FAILED" and view["attempt"] == 1
    assert "on account nobody-knows" in view["error"]["message"]
    assert "Invalid account" in view["error"]["message"]
    known = submitted(service, "known")
    assert service.finish(known, 60)["state"] == "SUCCEEDED", timeline(service, known)


def test_what_is_more_than_the_account_gives_one_job_fails_it(
    lab: AccountedLab, service: Service
) -> None:
    lab.await_idle()
    lab.account("modify", "account", "research", "set", "MaxTRESPerJob=cpu=1")
    try:
        view = service.finish(submitted(service, "known"), 60)
    finally:
        lab.account("modify", "account", "research", "set", "MaxTRESPerJob=cpu=-1")
    assert view["state"] == "FAILED" and view["attempt"] == 1
    assert "Slurm would never start this (AssocMaxCpuPerJobLimit)" in view["error"]["message"]


def test_a_job_that_may_run_longer_than_its_account_begins(
    lab: AccountedLab, service: Service
) -> None:
    lab.await_idle()
    lab.account("modify", "account", "research", "set", "MaxWall=60")
    try:
        job_id = submitted(service, "known")
        assert service.finish(job_id, 60)["state"] == "SUCCEEDED", timeline(service, job_id)
    finally:
        lab.account("modify", "account", "research", "set", "MaxWall=-1")


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("GrpTRES=cpu=1", "a limit of the account (AssocGrpCpuLimit)"),
        ("MaxSubmitJobs=0", "Job violates accounting/QOS policy"),
    ],
)
def test_a_limit_of_the_account_is_waited_for_with_its_reason(
    lab: AccountedLab, service: Service, limit: str, text: str
) -> None:
    name = limit.rpartition("=")[0]
    lab.await_idle()
    lab.account("modify", "account", "research", "set", limit)
    try:
        job_id = submitted(service, "known")
        assert text in awaited_reason(service, job_id)
    finally:
        lab.account("modify", "account", "research", "set", f"{name}=-1")
    assert service.finish(job_id, 90)["state"] == "SUCCEEDED", timeline(service, job_id)
