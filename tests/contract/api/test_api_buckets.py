"""Buckets in job requests: errors for buckets of other projects, and warnings for directories of remote
buckets."""

from typing import Any

import pytest

from tests.contract.api.api_service import LOCATION, ApiService
from tests.contract.api.violations import violations
from tests.unit.specs_requests import container, custom_job, ml_job, package


async def test_bucket_of_another_project_is_rejected_in_each_field(service: ApiService) -> None:
    """spec/program#isolation: no access to other projects' buckets. Each field with a bucket is checked when
    a job is created."""
    body = custom_job(
        package(packageUris=["gs://bucket/a.tar.gz", "gs://theirs/a.tar.gz"]),
        baseOutputDirectory={"outputUriPrefix": "gs://theirs/out"},
    )
    faults = violations(await service.call("POST", f"{LOCATION}/customJobs", body))
    assert sorted(faults) == [
        "job_spec.base_output_directory.output_uri_prefix",
        "job_spec.worker_pool_specs[0].python_package_spec.package_uris[1]",
    ]
    for text in faults.values():
        assert "does not exist for the project 'p1', because it belongs to another project" in text
    theirs = LOCATION.replace("p1", "theirs")
    assert (await service.call("POST", f"{theirs}/customJobs", body)).status == 200


async def test_bucket_of_another_project_is_rejected_for_ml_jobs(service: ApiService) -> None:
    body = ml_job(packageUris=["gs://theirs/a.tar.gz"], jobDir="gs://theirs/dir")
    faults = violations(await service.call("POST", "/v1/projects/p1/jobs", body))
    assert sorted(faults) == ["job_dir", "package_uris[0]"]
    assert "belongs to another" in faults["job_dir"]
    assert (await service.call("POST", "/v1/projects/theirs/jobs", body)).status == 200


@pytest.mark.parametrize(
    "where", [{"args": ["--data=/gcs/afar/train"]}, {"env": [{"name": "D", "value": "/gcs/afar"}]}]
)
async def test_gcs_directory_of_a_remote_bucket_causes_a_warning(
    service: ApiService, where: dict[str, Any]
) -> None:
    """Programs reach a remote bucket only as gs://, so a path below /gcs is reported before the job runs."""
    answer = await service.call("POST", f"{LOCATION}/customJobs", custom_job(container(**where)))
    uid = answer.json["name"].rpartition("/")[2]
    timeline = (await service.call("GET", f"/trainshed/v1/jobs/{uid}/timeline")).body.decode()
    assert "this directory does not exist" in timeline and "only as gs://afar" in timeline
    other = custom_job(container(args=["--data=/gcs/bucket/train"]))
    uid = (await service.result("POST", f"{LOCATION}/customJobs", other))["name"].rpartition("/")[2]
    quiet = (await service.call("GET", f"/trainshed/v1/jobs/{uid}/timeline")).body.decode()
    assert "this directory does not exist" not in quiet


@pytest.mark.parametrize("path", ["gs://bucket/../../x", "gs://bucket/a/./b", "gs://bucket/.."])
async def test_path_traversal_out_of_a_bucket_is_rejected(service: ApiService, path: str) -> None:
    """`baseOutputDirectory gs://mine/../../x` was accepted."""
    output = custom_job(baseOutputDirectory={"outputUriPrefix": path})
    packages = custom_job(package(packageUris=[f"{path}/p.whl"]))
    for url, body in (
        (f"{LOCATION}/customJobs", output),
        (f"{LOCATION}/customJobs", packages),
        ("/v1/projects/p1/jobs", ml_job(jobDir=path)),
    ):
        (fault,) = violations(await service.call("POST", url, body)).values()
        assert "contains . or .. between slashes" in fault
