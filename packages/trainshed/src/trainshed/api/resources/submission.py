"""What creating a job, tuning job or pipeline has in common in both APIs.

Named buckets must exist; the record and its first timeline entries are stored in one step; the
controller is woken.
"""

import asyncio
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar, assert_never

from msgspec.structs import replace

from trainshed.access.principals import Principal
from trainshed.api.calls.impersonation import actor_of
from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.services import BucketProbe, ContentDigest, Services
from trainshed.api.resources.jobs import asked_for, find_by_uid, has_dashboard
from trainshed.core.environment import service_account
from trainshed.core.errors import (
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    Unavailable,
    Violation,
)
from trainshed.core.job import JobDraft, JobSpec, WorkerPool
from trainshed.core.launch import STALL_LABEL, WARM_LABEL
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import OUTLIVES_LABEL, Actor, Job, Parent
from trainshed.core.names import Api, Collection, JobName, JobUid, default_bucket
from trainshed.core.notifications import LABEL as NOTIFY_LABEL
from trainshed.core.notifications import targets_of
from trainshed.core.packages import COPY_LABEL, JobPackage, digest_in
from trainshed.core.pipelines import Pipeline
from trainshed.core.reservations import fault_of_job, resource_of
from trainshed.core.specs.syntax import bucket_path_fault
from trainshed.core.specs.worker_pool import named_directories, not_mounted, without_gpus
from trainshed.core.terminals import HIGHEST, PAGES_LABEL, are_pages
from trainshed.core.tuning.records import TuningJob, TuningSpec
from trainshed.core.units import Bytes, Nanos
from trainshed.core.works import Work
from trainshed.store.port import NewWork
from trainshed.store.sqlite.reader import Reader
from trainshed.wire.json import compact_text

T = TypeVar("T")

BucketUse = tuple[str, str]
"""A field's path and the gs:// URI it holds."""

_NOT_KEPT = frozenset({"labels", "name", "etag"})
"""Fields that are kept beside the public JSON, because labels can change later."""
_LARGEST = 1_000_000
_SWITCH = re.compile("on|off").fullmatch
_LABELS: Final[Mapping[str, tuple[Callable[[str], object], str]]] = {
    STALL_LABEL: (
        re.compile("[0-9]+").fullmatch,
        "is not a whole number of seconds, such as 600; 0 turns the watchdog off.",
    ),
    WARM_LABEL: (_SWITCH, "is neither on nor off; without it the setting warm_starts counts."),
    OUTLIVES_LABEL: (_SWITCH, "is neither on nor off; without it it is off."),
    PAGES_LABEL: (
        are_pages,
        "is not NAME or NAME-PORT, with one _ between several: names of small letters and digits, each once, "
        f"and ports from 1 to {HIGHEST}.",
    ),
}
"""Labels that control functions of the service: whether a value is right, and what is wrong with others."""


def checked(
    parse: Callable[[], T],
    uses: Iterable[BucketUse],
    buckets: BucketProbe,
    further: tuple[Violation, ...] = (),
    *,
    project: str,
) -> T:
    """Return the parsed job if its specification is valid, every bucket that it names exists and is open to
    its `project`, and there are no `further` faults.

    Raises InvalidRequest with all violations at once.
    """
    missing = (*_missing_buckets(uses, buckets, project), *further)
    try:
        parsed = parse()
    except InvalidRequest as invalid:
        raise InvalidRequest((*invalid.violations, *missing)) from None
    if missing:
        raise InvalidRequest(missing)
    return parsed


def new_vertex_job(
    services: Services,
    place: LocationName,
    draft: JobDraft[JobSpec | TuningSpec],
    public: Mapping[str, Any],
    parent: Parent | None = None,
) -> Job | TuningJob:
    """Return the record of a new custom or tuning job, as `store_works` takes it; nothing is stored."""
    uid = services.new_uid()
    tunes = isinstance(draft.spec, TuningSpec)
    collection = Collection.TUNING_JOBS if tunes else Collection.CUSTOM_JOBS
    name = JobName(Api.VERTEX, place.project_id, place.location, str(uid), collection)
    return new_job(services, uid, name, draft, public, parent=parent)


def new_job(
    services: Services,
    uid: JobUid,
    name: JobName,
    draft: JobDraft[JobSpec | TuningSpec],
    public: Mapping[str, Any],
    *,
    parent: Parent | None = None,
) -> Job | TuningJob:
    """Return the record of a new job, as `store_works` takes it; nothing is stored."""
    now = services.now()
    kept, labels, title, spec = kept_json(public), draft.labels, draft.display_name, draft.spec
    _check_resource(services, name, spec, parent)
    if isinstance(spec, JobSpec):
        spec = _here(services, title, spec)
        return Job(uid, name, title, kept, now, now, labels, parent=parent, spec=spec)
    metrics = tuple(metric.id for metric in spec.study.metrics)
    spec = replace(spec, trial=_here(services, title, spec.trial, metrics))
    first = spec.first_trial
    return TuningJob(
        uid, name, title, kept, now, now, labels, parent=parent, spec=spec, next_trial=first
    )


def _check_resource(
    services: Services, name: JobName, spec: JobSpec | TuningSpec, parent: Parent | None
) -> None:
    """Raise InvalidRequest if a job can never run on the persistent resource that it names."""
    program = spec if isinstance(spec, JobSpec) else spec.trial
    resource = resource_of(name, program)
    if resource is None:
        return
    fault = fault_of_job(services.reservations.find(resource), str(resource), program)
    if fault is not None:
        field = "job_spec" if isinstance(spec, JobSpec) else "trial_job_spec"
        path = "training_pipeline.training_task_inputs" if parent is not None else field
        raise InvalidRequest((Violation(f"{path}.persistent_resource_id", fault),))


def kept_json(public: Mapping[str, Any], without: Container[str] = _NOT_KEPT) -> str:
    """Return what a record keeps of a resource's public JSON. Raises InvalidRequest: too large for lists."""
    kept = compact_text({key: value for key, value in public.items() if key not in without})
    if len(kept.encode()) > _LARGEST:
        text = f"It has more than {_LARGEST:,} bytes as JSON; put what is long into a bucket."
        raise InvalidRequest((Violation("", text),))
    return kept


async def store_works(services: Services, principal: Principal, *works: Work) -> None:
    """Store new works, all or none, with who made them and their packages pinned, and wake the
    controller. Their project gets its default bucket.

    Raises AlreadyExists, InvalidRequest (wrong labels), FailedPrecondition (`pinned`),
    Unavailable (the service stops), and as `Intake.create`.
    """
    if services.closing.is_set():
        raise Unavailable(
            "The service is stopping and accepts no new jobs. Submit the job again after its restart."
        )
    made: list[NewWork] = []
    creator = await actor_of(services.reader, principal)
    for work in works:
        check_labels(services, work.labels)
        new = replace(await pinned(services, work), creator=creator)
        made.append(NewWork(new, _first_entries(new, creator)))
    for project in {work.name.project_id for work in works}:
        await require_default_bucket(services, project)
    await services.create(*made)


async def require_default_bucket(services: Services, project: str) -> None:
    """Make a project's default bucket if it is not there. The service has made that of its own project at its
    start: a job waits for it where somebody has moved it away. Raises Unavailable."""
    settings = services.settings
    if project == settings.project:
        return
    name = default_bucket(settings.project, project)
    if services.buckets.bucket_location(name) is None:
        await asyncio.to_thread(services.buckets.ensure, name, settings.region, project)


def check_labels(services: Services, labels: Iterable[tuple[str, str]]) -> None:
    """Raise InvalidRequest if a label that controls a function of the service has an invalid value: what
    somebody believes to be on, or encrypted, must be, and there are the targets of notifications."""
    values = dict(labels)
    wrong = [
        Violation(f"labels.{label}", f"{values[label]!r} {fault}")
        for label, (is_right, fault) in _LABELS.items()
        if label in values and not is_right(values[label])
    ]
    wanted, known = targets_of(values.items()), services.settings.notify
    unknown = [name for name in wanted if name not in known]
    if NOTIFY_LABEL in values and (unknown or not wanted):
        there = (
            f"there are {', '.join(sorted(known))}, with one _ between several"
            if known
            else "the service has none; its operator adds one as [[notify]] in its configuration"
        )
        text = f"There is no target {', '.join(map(repr, unknown)) or repr('')}; {there}."
        wrong.append(Violation(f"labels.{NOTIFY_LABEL}", text))
    if wrong:
        raise InvalidRequest(tuple(wrong))


def _here(
    services: Services, display_name: str, spec: JobSpec, metrics: tuple[str, ...] = ()
) -> JobSpec:
    """Return the specification as this installation runs it, with the warnings that only it can give.
    `metrics`: the ids of those that it measures, if it is a trial's."""
    if services.replace_spec is not None:
        spec = services.replace_spec(display_name, spec, metrics)
    return replace(spec, warnings=(*spec.warnings, *_warnings(services, spec)))


def _warnings(services: Services, spec: JobSpec) -> Iterator[str]:
    """Yield what only this installation can tell (spec/submit#warnings): of buckets that a program
    expects as directories and will not find, of GPUs that are not here (spec/queue#capacity), of shells."""
    for name in dict.fromkeys(named_directories(spec.pools)):
        if services.buckets.is_unmounted(name):
            yield not_mounted(name)
    if warning := without_gpus(spec.pools, services.capacity.accelerators()):
        yield warning
    fields = {"enable_web_access": asked_for(spec), "enable_dashboard_access": has_dashboard(spec)}
    if not services.allows_shells and (
        wanted := [name for name, is_set in fields.items() if is_set]
    ):
        yield (
            f"The job requests web access ({', '.join(wanted)}), but the operator has disabled shells on "
            "this service (setting `shell`)."
        )


def _first_entries(work: Work, creator: Actor) -> tuple[TimelineEntry, ...]:
    match work:
        case Job():
            replicas = len(work.spec.replicas())
            words = f"{replicas} replica{'s' * (replicas != 1)}"
            facts = {"replicas": replicas}
            notices = tuple(_notices(work.created, work.spec))
        case TuningJob():
            trials, parallel = work.spec.max_trials, work.spec.parallel_trials
            words = f"up to {trials} trial{'s' * (trials != 1)}, {parallel} at a time"
            facts = {"trials": trials, "parallel": parallel}
            notices = _notices(work.created, work.spec.trial)
        case Pipeline():
            words = f"a {work.spec.task}"
            facts = {"job": int(work.job)}
            notices = ()
        case _:
            assert_never(work)
    maker = {"creator_job": str(creator.job.name)} if creator.job is not None else {}
    created = TimelineEntry(
        work.created,
        "created",
        f"{work.name} was created by {creator}: {words}.",
        {"principal": creator.email, **maker, **facts},
    )
    return (created, *notices)


def _notices(at: Nanos, spec: JobSpec) -> tuple[TimelineEntry, ...]:
    return (
        *(
            TimelineEntry(at, "warning" if text in spec.substitutions else "notice", text)
            for text in spec.runtime_notices
        ),
        *(TimelineEntry(at, "warning", text) for text in spec.warnings),
    )


def _missing_buckets(
    uses: Iterable[BucketUse], buckets: BucketProbe, project: str, account: str | None = None
) -> Iterator[Violation]:
    """Yield a violation for every well-formed URI whose bucket does not exist for the project and this
    service account (None = any of its own); the specification's check reports the others."""
    known: dict[str, str | None] = {}
    for field, uri in uses:
        if not uri or bucket_path_fault(uri):
            continue
        bucket = uri[5:].partition("/")[0]
        if bucket not in known:
            known[bucket] = _why_missing(bucket, buckets, project, account)
        if known[bucket] is not None:
            yield Violation(
                field, f"The bucket {bucket!r} of {uri!r} does not exist{known[bucket]}"
            )


def _why_missing(
    bucket: str, buckets: BucketProbe, project: str, account: str | None
) -> str | None:
    """Return how the sentence continues that says so; None if the bucket exists."""
    if buckets.bucket_location(bucket) is None:
        return f"; create it first, for example with `gcloud storage buckets create gs://{bucket}`."
    if buckets.is_closed(bucket, project, account):
        return (
            f" for the project {project!r}: it belongs to another one. Name a bucket of {project!r} or a "
            "shared one, or grant the job's service account a role in the bucket's IAM policy."
        )
    return None


_MOST: Final = Bytes(256 << 20)
"""Content that is read for one new job: enough for code, and soon done."""

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
    uris = tuple(dict.fromkeys(uri for pool in spec.pools for uri in pool.program.package_uris))
    if not uris:
        return work
    project = work.name.project_id
    account = service_account(project, spec)
    # The service fetches them itself, also those that are named among a container's arguments.
    named_by = (("package_uris", uri) for uri in uris)
    if closed := tuple(_missing_buckets(named_by, services.buckets, project, account)):
        raise InvalidRequest(closed)
    before = await _before(services.reader, work)
    demanded = {uri: before.get(uri) or digest_in(uri) for uri in uris}
    seen = await asyncio.to_thread(_seen, services.buckets, uris)
    packages = [JobPackage(uri, demanded[uri]) for uri in uris]
    there = [(package, seen[package.uri].sha256) for package in packages]
    if faults := [fault for pin, digest in there if digest and (fault := pin.fault(digest))]:
        raise FailedPrecondition("\n".join(faults))
    digests = {package.uri: digest or package.digest for package, digest in there}
    unknown = (_warning(uri, seen[uri]) for uri in uris if not digests[uri])
    pools = tuple(_with_digests(pool, digests) for pool in spec.pools)
    spec = replace(spec, pools=pools, warnings=(*spec.warnings, *unknown))
    if isinstance(work, Job):
        return replace(work, spec=spec)
    return replace(work, spec=replace(work.spec, trial=spec))


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


def _warning(uri: str, seen: ContentDigest) -> str:
    return (
        f"The package {uri} {seen.unknown}, so the job is not pinned to its content: it installs what lies "
        "there when it starts."
    )


async def _before(reader: Reader, work: Job | TuningJob) -> Digests:
    """Return the pins of the job that the work is a copy of; none if it is no copy."""
    text = dict(work.labels).get(COPY_LABEL, "")
    if not text:
        return {}
    try:
        old, _ = await find_by_uid(reader, text)
        if isinstance(old, Pipeline):
            old, _ = await reader.job_by_uid(old.job)
    except NotFound:
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
