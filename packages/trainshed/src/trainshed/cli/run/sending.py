"""Submits a job: requests its preflight (spec/submit#preflight), uploads its packages to a bucket, and
creates it."""

import hashlib
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import click
from msgspec.structs import replace

from trainshed.cli.client import Client, RequestError
from trainshed.cli.connection import Endpoint
from trainshed.cli.jobs.describe import waiting_lines
from trainshed.cli.run.job_files import JobFile
from trainshed.cli.run.program import Package
from trainshed.cli.text.colours import faint
from trainshed.cli.text.moments import gibibytes
from trainshed.cli.text.tables import Field, table_of
from trainshed.core.capacity import WaitReason
from trainshed.core.copies import collection_of
from trainshed.core.names import Api, JobName
from trainshed.core.packages import staged_name
from trainshed.wire.trainshed_v1.capacity import Explanation


def package_uri(bucket: str, package: Package) -> str:
    """Return the gs:// URI of a package. The URI contains a digest, so equal packages have the same URI."""
    digest = hashlib.sha256(package.content).hexdigest()
    return f"gs://{bucket}/{staged_name(digest, package.filename)}"


def upload(endpoint: Endpoint, packages: Sequence[Package]) -> None:
    """Upload packages to the service's bucket. Raises RequestError, Unreachable."""
    storage = endpoint.storage_client()
    for package in packages:
        name = package_uri(endpoint.bucket, package).removeprefix(f"gs://{endpoint.bucket}/")
        storage.upload(endpoint.bucket, name, package.content, len(package.content))


def require_bucket(endpoint: Endpoint, place: dict[str, str]) -> None:
    """Create the default bucket of the project if the bucket does not exist. `place`: the project and the
    region of the bucket. Raises RequestError, Unreachable."""
    storage = endpoint.storage_client()
    try:
        storage.get(f"/storage/v1/b/{endpoint.bucket}")
    except RequestError as refused:
        if refused.status != HTTPStatus.NOT_FOUND:
            raise
        project = quote(place["project"], safe="")
        bucket = {"name": endpoint.bucket, "location": place["region"]}
        try:
            storage.post(f"/storage/v1/b?project={project}", bucket)
        except RequestError as made_meanwhile:
            if made_meanwhile.status != HTTPStatus.CONFLICT:
                raise


def create(client: Client, job: JobFile, place: dict[str, str]) -> str:
    """Create a job in a project and region, and return its full name. Raises RequestError, Unreachable."""
    path = collection_of(job.api, job.job, place["project"], place["region"])
    created: dict[str, Any] = client.post(path, job.job)
    if job.api is Api.ML:
        return f"projects/{place['project']}/jobs/{created['jobId']}"
    return str(JobName.parse(created["name"]))


WOULD_WAIT = 3
"""Exit status for a valid job that would wait, or that does not fit on any set of nodes."""

TOO_LARGE = (
    "use fewer or smaller replicas; or, as the operator, declare larger nodes (trainshed up --node-cpus "
    "4), fewer nodes (--nodes 1), or share the capacity (--capacity relaxed). If you submit it unchanged, "
    "it fails after a few attempts"
)


def explanation(answer: Explanation) -> Iterator[str]:
    """Yield the lines that describe the response of a preflight."""
    where = f"{answer.project}, {answer.location}"
    waiting = answer.waiting
    if waiting is None:
        yield click.style("Would start now", fg="green", bold=True) + faint(f"  {where}")
    else:
        stock_out = waiting.reason == WaitReason.STOCK_OUT
        verdict, colour = ("Does not fit any node", "red") if stock_out else ("Would wait", "yellow")
        yield click.style(verdict, fg=colour, bold=True) + faint(f"  {where}")
        # A job that can never fit is not in the queue, so it has no position.
        shown = replace(waiting, position=0) if stock_out else waiting
        yield from (f"  {line}" for line in waiting_lines(shown))
        if stock_out and not waiting.hint:
            yield f"  {TOO_LARGE}"
    yield ""
    yield from table_of(_MACHINES, answer.machines)
    if answer.places:
        yield ""
        yield from table_of(_PLACES, answer.places)
    shown = [("notice", text) for text in answer.notices]
    shown += [("warning", text) for text in answer.warnings]
    if shown:
        yield ""
    for kind, text in shown:
        yield click.style(f"{kind}: {text}", fg="yellow" if kind == "warning" else None)


_MACHINES = (
    Field("POOL", "pool"),
    Field("REPLICAS", "replicas", right=True),
    Field("MACHINE TYPE", "machine_type"),
    Field("CPUS", "vcpus", "{:g}".format, right=True),
    Field("USABLE MEMORY", "memory_limit_bytes", gibibytes, right=True),
    Field("ACCELERATORS", "accelerators", lambda devices: f"{devices.count} × {devices.type}"),
    Field("DISK", "disk_gb", "{} GB".format, right=True),
)
_PLACES = (Field("REPLICA", "task"), Field("NODE", "node"))
