"""What creating a job has in common in both APIs: named buckets must exist; the record and its first
timeline entries are written in one step; the controller is told."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from trainshed.api.planned_drills import with_planned_drills
from trainshed.api.services import BucketProbe, Services
from trainshed.core.errors import InvalidRequest, Unavailable, Violation
from trainshed.core.launch import STALL_LABEL
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.story import drill_ordered
from trainshed.core.names import JobName, JobUid
from trainshed.core.specs.model import JobSpec
from trainshed.core.specs.syntax import bucket_path_fault
from trainshed.core.specs.warnings import bucket_elsewhere, without_gpus

T = TypeVar("T")

BucketUse = tuple[str, str]
"""A field's path and the gs:// URI it holds."""


def checked(
    parse: Callable[[], T], uses: Iterator[BucketUse] | tuple[BucketUse, ...], buckets: BucketProbe
) -> T:
    """The parsed job, if its spec is valid and every bucket it names exists.

    Raises InvalidRequest with the violations of both kinds at once.
    """
    missing = tuple(_missing_buckets(uses, buckets))
    try:
        parsed = parse()
    except InvalidRequest as invalid:
        raise InvalidRequest((*invalid.violations, *missing)) from None
    if missing:
        raise InvalidRequest(missing)
    return parsed


def new_job(
    services: Services,
    uid: JobUid,
    name: JobName,
    *,
    display_name: str,
    spec: JobSpec,
    labels: tuple[tuple[str, str], ...],
    public: Mapping[str, Any],
) -> Job:
    """The record of a new job as `store_job` takes it; nothing is stored."""
    now = services.now()
    found = (*_elsewhere(spec, services.buckets), *_without_gpus(services, spec))
    spec = replace(spec, warnings=(*spec.warnings, *found)) if found else spec
    # Labels can change later, so they are kept beside the record and not within it.
    kept = {key: value for key, value in public.items() if key not in ("labels", "name", "etag")}
    return Job(
        uid=uid,
        name=name,
        display_name=display_name,
        spec=spec,
        public_json=json.dumps(kept, ensure_ascii=False, separators=(",", ":")),
        created=now,
        updated=now,
        labels=labels,
    )


async def store_job(services: Services, job: Job, principal: str) -> None:
    """Write the new job, with the drills of the plan that its label names, and wake the controller. Raises AlreadyExists,
    InvalidRequest (no such plan), Unavailable (the service stops)."""
    if services.closing.is_set():
        raise Unavailable(
            "The service is stopping and takes no new jobs; submit again when it is up again."
        )
    _check_stall_label(job)
    job = await with_planned_drills(services, job)
    await services.intake.create_job(job, _first_entries(job, principal))
    services.wake(job.uid)


def _check_stall_label(job: Job) -> None:
    """A watchdog that somebody believes to be on must be on. Raises InvalidRequest."""
    text = dict(job.labels).get(STALL_LABEL, "0")
    if not (text.isascii() and text.isdecimal()):
        wrong = f"{text!r} is not a whole number of seconds, such as 600; 0 turns the watchdog off."
        raise InvalidRequest((Violation(f"labels.{STALL_LABEL}", wrong),))


def _without_gpus(services: Services, spec: JobSpec) -> Iterator[str]:
    """SPEC §2, "Capacity modes": a GPU spec on a host without GPUs runs without them, with a notice."""
    if any(pool.machine.accelerators for pool in spec.pools):
        there = {kind for node in services.room.nodes() for kind, _ in node.accelerators}
        if warning := without_gpus(spec.pools, there):
            yield warning


def runtime_notices(spec: JobSpec) -> tuple[str, ...]:
    """What the runtimes of a job are to be told about, each once."""
    return tuple(
        dict.fromkeys(notice for pool in spec.pools for notice in pool.program.runtime.notices)
    )


def _first_entries(job: Job, principal: str) -> tuple[TimelineEntry, ...]:
    replicas = len(job.spec.replicas())
    created = TimelineEntry(
        job.created,
        "created",
        f"{job.name} was created by {principal}: {replicas} replica{'s' * (replicas != 1)}.",
        {"principal": principal, "replicas": replicas},
    )
    return (
        created,
        *(TimelineEntry(job.created, "notice", text) for text in runtime_notices(job.spec)),
        *(TimelineEntry(job.created, "warning", text) for text in job.spec.warnings),
        *(drill_ordered(job, drill) for drill in job.drills),
    )


def _elsewhere(spec: JobSpec, buckets: BucketProbe) -> Iterator[str]:
    """Warnings for the buckets that the job writes to and that are not where it runs (SPEC §1.6)."""
    for uri in dict.fromkeys(filter(None, (spec.base_output_directory, spec.job_dir))):
        bucket = uri[5:].partition("/")[0]
        warning = bucket_elsewhere(bucket, buckets.bucket_location(bucket) or "", spec.region)
        if warning:
            yield warning


def _missing_buckets(
    uses: Iterator[BucketUse] | tuple[BucketUse, ...], buckets: BucketProbe
) -> Iterator[Violation]:
    """A violation for every well-formed URI whose bucket is not there; the spec reports the others."""
    known: dict[str, bool] = {}
    for field, uri in uses:
        if not uri or bucket_path_fault(uri):
            continue
        bucket = uri[5:].partition("/")[0]
        if bucket not in known:
            known[bucket] = buckets.bucket_location(bucket) is not None
        if not known[bucket]:
            yield Violation(
                field,
                f"The bucket {bucket!r} of {uri!r} does not exist; create it first, for example with "
                f"`gcloud storage buckets create gs://{bucket}`.",
            )
