"""Submits a job to the service: uploads its packages to a bucket, and creates the job by its API."""

import hashlib
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import click

from trainshed.cli.client import Client, Refused
from trainshed.cli.connection import Endpoint
from trainshed.cli.run.job_files import JobFile
from trainshed.cli.run.program import Package
from trainshed.core.copies import collection_of
from trainshed.core.names import Api, JobName
from trainshed.core.packages import staged_name


def package_uri(bucket: str, package: Package) -> str:
    """Return the gs:// URI of a package. It contains a digest, so that equal packages have the same URI."""
    digest = hashlib.sha256(package.content).hexdigest()
    return f"gs://{bucket}/{staged_name(digest, package.filename)}"


def upload(endpoint: Endpoint, packages: Sequence[Package]) -> None:
    """Upload packages to the service's bucket. Raises Refused, Unreachable."""
    storage = endpoint.storage_client()
    for package in packages:
        name = package_uri(endpoint.bucket, package).removeprefix(f"gs://{endpoint.bucket}/")
        storage.upload(endpoint.bucket, name, package.content, len(package.content))


def require_bucket(endpoint: Endpoint, place: dict[str, str]) -> None:
    """Make the project's default bucket if it is not there. Raises Refused, Unreachable."""
    storage = endpoint.storage_client()
    try:
        storage.get(f"/storage/v1/b/{endpoint.bucket}")
    except Refused as refused:
        if refused.status != HTTPStatus.NOT_FOUND:
            raise
        project = quote(place["project"], safe="")
        bucket = {"name": endpoint.bucket, "location": place["region"]}
        storage.post(f"/storage/v1/b?project={project}", bucket)


def create(client: Client, job: JobFile, place: dict[str, str]) -> str:
    """Create a job in a project and region, and return its full name. Raises Refused, Unreachable."""
    path = collection_of(job.api, job.job, place["project"], place["region"])
    created: dict[str, Any] = client.post(path, job.job)
    if job.api is Api.ML:
        return f"projects/{place['project']}/jobs/{created['jobId']}"
    return str(JobName.parse(created["name"]))


def require_place(endpoint: Endpoint, place: dict[str, str]) -> None:
    """Raise click.UsageError unless a job's project and region are known."""
    if not place["project"] or not place["region"]:
        raise click.UsageError(
            f"The service at {endpoint.rest} has no project and region of its own: give --project and"
            " --region."
        )
