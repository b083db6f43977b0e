"""Pins the packages of new jobs to the content that they have now: the record of a job says what is to be
installed, whoever may write to the bucket later (ADR 163)."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from trainshed.api.calls.services import BucketProbe, ContentDigest, Services
from trainshed.core.errors import FailedPrecondition, InvalidRequest, NotFound, Violation
from trainshed.core.job import JobSpec, WorkerPool
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.packages import COPY_LABEL, JobPackage, digest_in
from trainshed.core.pipelines import Pipeline
from trainshed.core.tuning.records import TuningJob
from trainshed.core.units import Bytes
from trainshed.core.works import Work
from trainshed.store.sqlite.reader import Reader

_MOST: Final = Bytes(256 << 20)
"""Content that is read for one new job: enough for code, and soon done."""
_MOST_DIGITS: Final = 19

Digests = Mapping[str, str]
"""The SHA-256 of packages, or its beginning, by their URIs; "" = not pinned."""


async def pinned(services: Services, work: Work) -> Work:
    """Return a new work whose packages are pinned, with a warning for each one that cannot be.

    Raises FailedPrecondition for a package that is not what its path says, or not what the job had of which
    this one is a copy; InvalidRequest if there is no such job.
    """
    if isinstance(work, Pipeline):
        return work  # Its job is a work of its own.
    spec = work.spec if isinstance(work, Job) else work.spec.trial
    if not (uris := _uris(spec)):
        return work
    before = await _before(services.reader, work)
    demanded = {uri: before.get(uri) or digest_in(uri) for uri in uris}
    seen = await asyncio.to_thread(_seen, services.buckets, uris)
    packages = [JobPackage(uri, demanded[uri]) for uri in uris]
    there = [(package, seen[package.uri].sha256) for package in packages]
    if faults := [fault for pin, digest in there if digest and (fault := pin.fault(digest))]:
        raise FailedPrecondition("\n".join(faults))
    digests = {package.uri: digest or package.digest for package, digest in there}
    unknown = (_warning(uri, seen[uri].unknown) for uri in uris if not digests[uri])
    pools = tuple(_with_digests(pool, digests) for pool in spec.pools)
    spec = replace(spec, pools=pools, warnings=(*spec.warnings, *unknown))
    if isinstance(work, Job):
        return replace(work, spec=spec)
    return replace(work, spec=replace(work.spec, trial=spec))


def _uris(spec: JobSpec) -> tuple[str, ...]:
    return tuple(dict.fromkeys(uri for pool in spec.pools for uri in pool.program.package_uris))


def _with_digests(pool: WorkerPool, digests: Digests) -> WorkerPool:
    own = tuple(digests[uri] for uri in pool.program.package_uris)
    return replace(pool, program=replace(pool.program, package_digests=own))


def _seen(buckets: BucketProbe, uris: Iterable[str]) -> dict[str, ContentDigest]:
    """Return what the packages contain, as far as they are not too large together. Blocks."""
    seen: dict[str, ContentDigest] = {}
    left = _MOST
    for uri in uris:
        seen[uri] = buckets.digest(uri, left)
        left = Bytes(max(0, left - seen[uri].size))
    return seen


def _warning(uri: str, why: str) -> str:
    return (
        f"The package {uri} {why}, so the job is not pinned to its content: it installs what lies there when "
        "it starts."
    )


async def _before(reader: Reader, work: Job | TuningJob) -> Digests:
    """Return the pins of the job that the work is a copy of; none if it is no copy."""
    text = dict(work.labels).get(COPY_LABEL, "")
    if not text:
        return {}
    try:
        if not (text.isascii() and text.isdecimal()) or len(text) > _MOST_DIGITS:
            raise NotFound(text)
        old, _ = await reader.job_by_uid(JobUid(int(text)))
        if isinstance(old, Pipeline):
            old, _ = await reader.job_by_uid(old.job)
    except (NotFound, OverflowError):
        old = None
    if old is None or isinstance(old, Pipeline) or old.name.project_id != work.name.project_id:
        wrong = (
            f"There is no job {text!r} in the project {work.name.project_id}. Take the label away: the job "
            "then takes the packages as they are now."
        )
        raise InvalidRequest((Violation(f"labels.{COPY_LABEL}", wrong),))
    spec = old.spec if isinstance(old, Job) else old.spec.trial
    packages = (archive for pool in spec.pools for archive in pool.program.packages)
    return {package.uri: package.digest for package in packages}
