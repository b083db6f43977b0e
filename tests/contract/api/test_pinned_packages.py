"""A job is pinned to the contents of its packages at its creation (docs/adr/0163)."""

import hashlib
from typing import Any

import pytest
from msgspec.structs import force_setattr, replace

from tests.contract.api.api_service import LOCATION, ApiService
from tests.contract.api.violations import violations
from tests.unit.specs_requests import SKLEARN, container, custom_job, ml_job, package
from tests.unit.test_specs_tuning import tuning_job
from trainshed.core.copies import copy_of
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Api, JobUid
from trainshed.core.packages import JobPackage, digest_in, staged_name
from trainshed.core.tuning.records import TuningJob

ONE, TWO = "gs://bucket/one.whl", "gs://bucket/two.tar.gz"
CUSTOM_JOBS = f"{LOCATION}/customJobs"


def sha256(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


async def create_work(service: ApiService, path: str, body: Any) -> Job | TuningJob:
    """Create a job with the request and return its record."""
    await service.result("POST", path, body)
    jobs = (await service.result("GET", "/trainshed/v1/jobs?project=-&limit=1"))["jobs"]
    work, _ = await service.store.reader.job_by_uid(JobUid(int(jobs[0]["uid"])))
    assert isinstance(work, Job | TuningJob)
    return work


def pins(work: Job | TuningJob) -> set[tuple[JobPackage, ...]]:
    spec = work.spec if isinstance(work, Job) else work.spec.trial
    return {pool.program.packages for pool in spec.pools}


async def refusal(service: ApiService, body: Any) -> str:
    answer = await service.call("POST", CUSTOM_JOBS, body)
    assert (answer.status, answer.error["status"]) == (400, "FAILED_PRECONDITION"), answer.body
    return str(answer.error["message"])


async def test_every_kind_of_job_is_pinned_to_its_packages(service: ApiService) -> None:
    packages = package(packageUris=[ONE, TWO])
    vertex = custom_job(packages, {**packages, "replicaCount": "2"})
    expected = {(JobPackage(ONE, sha256(ONE)), JobPackage(TWO, sha256(TWO)))}
    assert pins(await create_work(service, CUSTOM_JOBS, vertex)) == expected
    old = ml_job(packageUris=[ONE, TWO])
    assert pins(await create_work(service, "/v1/projects/p1/jobs", old)) == expected
    trials = tuning_job(trialJobSpec=vertex["jobSpec"])
    path = f"{LOCATION}/hyperparameterTuningJobs"
    assert pins(await create_work(service, path, trials)) == expected


async def test_container_arguments_cannot_read_packages_of_other_projects(service: ApiService) -> None:
    """The service fetches the packages in these arguments like those of `packageUris`."""
    args = ["--module_name=own.show", "--package_uris=gs://theirs/trainer-0.1.tar.gz"]
    answer = await service.call("POST", CUSTOM_JOBS, custom_job(container(imageUri=SKLEARN, args=args)))
    assert "because it belongs to another project" in violations(answer)["package_uris"]


async def test_first_job_of_a_project_creates_its_default_bucket(service: ApiService) -> None:
    """The service's own project already has its bucket since the service's start."""
    settings = replace(service.services.settings, project="p1")
    force_setattr(service.services, "settings", settings)
    for project in ("p1", "p2", "p2"):
        await create_work(service, CUSTOM_JOBS.replace("p1", project), custom_job())
    assert service.buckets.projects == {"trainshed-p2": "p2"}


async def test_missing_package_is_not_pinned_and_causes_a_warning(service: ApiService) -> None:
    service.buckets.contents[ONE] = None
    work = await create_work(service, CUSTOM_JOBS, custom_job(package(packageUris=[ONE, TWO])))
    assert pins(work) == {(JobPackage(ONE), JobPackage(TWO, sha256(TWO)))}
    timeline = (await service.call("GET", f"/trainshed/v1/jobs/{work.uid}/timeline")).body.decode()
    assert f"The package {ONE} is not there yet, so the job is not pinned to its content" in timeline
    assert f"The package {TWO}" not in timeline


async def test_staged_package_must_match_the_digest_in_its_path(service: ApiService) -> None:
    """A job file written by `trainshed run` contains the digest, so a replaced wheel is detected."""
    digest = sha256("mine")
    uri = f"gs://bucket/{staged_name(digest, 'task-0.1-py3-none-any.whl')}"
    job = custom_job(package(packageUris=[uri]))
    service.buckets.contents[uri] = "mine"
    assert pins(await create_work(service, CUSTOM_JOBS, job)) == {(JobPackage(uri, digest),)}
    service.buckets.contents[uri] = "theirs"
    message = await refusal(service, job)
    assert uri in message and digest_in(uri) in message and sha256("theirs") in message
    # The package does not exist yet, and its later contents are checked.
    service.buckets.contents[uri] = None
    work = await create_work(service, CUSTOM_JOBS, job)
    assert pins(work) == {(JobPackage(uri, digest_in(uri)),)}
    assert isinstance(work, Job) and not work.spec.warnings


@pytest.mark.parametrize("digits", [15, 65])
def test_package_is_pinned_only_by_a_digest_in_a_staging_path(digits: int) -> None:
    for path in (f"trainshed-run/{'a' * digits}/x.whl", f"other/{'a' * 32}/x.whl"):
        assert digest_in(f"gs://bucket/{path}") == ""
    assert digest_in(f"gs://bucket/trainshed-run/{'a' * 16}/x.whl") == "a" * 16


async def test_copied_job_keeps_the_package_pins_of_its_original(service: ApiService) -> None:
    """This applies to retry and clone, to both APIs, and to copies of copies."""
    body = custom_job(package(packageUris=[ONE]))
    first = await create_work(service, CUSTOM_JOBS, body)
    copy = copy_of(Api.VERTEX, body, 0, str(first.uid))
    second = await create_work(service, CUSTOM_JOBS, copy)
    again = copy_of(Api.VERTEX, body, 0, str(second.uid))
    service.buckets.contents[ONE] = "theirs"
    message = await refusal(service, copy)
    assert ONE in message and sha256(ONE) in message and sha256("theirs") in message
    assert ONE in await refusal(service, again)
    # The bucket has lost the package. The job reports that when it installs, and the pin is still known.
    service.buckets.contents[ONE] = None
    assert pins(await create_work(service, CUSTOM_JOBS, again)) == {(JobPackage(ONE, sha256(ONE)),)}
    # A new job uses the new contents, as does a clone with `--label trainshed-copy-of=`.
    service.buckets.contents[ONE] = "new"
    for fresh in (body, {**body, "labels": {"trainshed-copy-of": ""}}):
        assert pins(await create_work(service, CUSTOM_JOBS, fresh)) == {(JobPackage(ONE, sha256("new")),)}


@pytest.mark.parametrize("uid", ["5", "none", "9" * 30])
async def test_copy_of_a_missing_or_foreign_job_is_rejected(service: ApiService, uid: str) -> None:
    """The error does not reveal jobs of other projects."""
    theirs = await create_work(
        service, CUSTOM_JOBS.replace("p1", "p2"), custom_job(package(packageUris=[ONE]))
    )
    for wanted in (uid, str(theirs.uid)):
        job = {**custom_job(package(packageUris=[ONE])), "labels": {"trainshed-copy-of": wanted}}
        faults = violations(await service.call("POST", CUSTOM_JOBS, job))
        assert list(faults) == ["labels.trainshed-copy-of"]
        assert f"The job {wanted!r} does not exist in the project p1" in faults["labels.trainshed-copy-of"]
