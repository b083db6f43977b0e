"""Steps that both training APIs use to create jobs, tuning jobs and pipelines.

The buckets in a request must exist. The record and its first timeline entries are stored in one transaction.
Then the controller is notified.
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
from trainshed.api.resources.dependencies import find_dependencies
from trainshed.api.resources.jobs import find_by_uid, has_dashboard, has_web_access
from trainshed.core.dependencies import AFTER_LABEL, Dependency, explain_dependencies, parse_after
from trainshed.core.environment import service_account
from trainshed.core.errors import FailedPrecondition, InvalidRequest, NotFound, Unavailable, Violation
from trainshed.core.job import JobDraft, JobSpec, WorkerPool
from trainshed.core.launch import STALL_LABEL, WARM_LABEL
from trainshed.core.lifecycle import timeline
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import OUTLIVES_LABEL, Actor, Job, Parent
from trainshed.core.names import Api, Collection, JobName, JobUid, default_bucket
from trainshed.core.notifications import LABEL as NOTIFY_LABEL
from trainshed.core.notifications import targets_of
from trainshed.core.packages import COPY_LABEL, JobPackage, digest_in
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.pipelines import Pipeline
from trainshed.core.reservations import fault_of_job, resource_of
from trainshed.core.specs.syntax import bucket_path_fault
from trainshed.core.specs.worker_pool import missing_gpu_warning, named_directories, unmounted_bucket_warning
from trainshed.core.terminals import HIGHEST, PAGES_LABEL, are_pages
from trainshed.core.tuning.records import TuningJob, TuningSpec
from trainshed.core.units import Bytes, Nanos
from trainshed.core.works import Work
from trainshed.store.port import NewWork, Write
from trainshed.store.sqlite.reader import Reader
from trainshed.wire.json import compact_text

T = TypeVar("T")

BucketUse = tuple[str, str]
"""The path of a field, and the gs:// URI in the field."""

_SEPARATE_FIELDS = frozenset({"labels", "name", "etag"})
"""Fields that the record stores outside the public JSON. Labels, for example, can change later."""
_MAX_JSON_SIZE = 1_000_000
_match_on_off = re.compile("on|off").fullmatch
_LABELS: Final[Mapping[str, tuple[Callable[[str], object], str]]] = {
    STALL_LABEL: (
        re.compile("[0-9]+").fullmatch,
        "is not a whole number of seconds, such as 600. 0 turns the watchdog off.",
    ),
    WARM_LABEL: (_match_on_off, "is neither on nor off. Without the label, the setting warm_starts applies."),
    OUTLIVES_LABEL: (_match_on_off, "is neither on nor off. The default is off."),
    AFTER_LABEL: (
        parse_after,
        "is not JOB, JOB_succeeded or JOB_finished, with __ between several. JOB is the UID of a job, or the "
        "ID of an ml job in lower case.",
    ),
    PAGES_LABEL: (
        are_pages,
        "is not NAME or NAME-PORT, with _ between several. Names contain lower-case letters and digits and "
        f"differ from each other; ports are 1 to {HIGHEST}.",
    ),
}
"""Labels that control functions of the service. Each has a check of its value, and the error for a wrong
value."""


def check_and_parse(
    parse: Callable[[], T],
    uses: Iterable[BucketUse],
    buckets: BucketProbe,
    further: tuple[Violation, ...] = (),
    *,
    project: str,
) -> T:
    """Return the parsed job. Raises InvalidRequest with all errors: those of the specification, `further`,
    and buckets that do not exist or are not accessible to the `project`."""
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
    location: LocationName,
    draft: JobDraft[JobSpec | TuningSpec],
    public: Mapping[str, Any],
    parent: Parent | None = None,
) -> Job | TuningJob:
    """Return the record of a new custom or tuning job. It is not stored yet (`store_works`)."""
    uid = services.new_uid()
    is_tuning = isinstance(draft.spec, TuningSpec)
    collection = Collection.TUNING_JOBS if is_tuning else Collection.CUSTOM_JOBS
    name = JobName(Api.VERTEX, location.project_id, location.location, str(uid), collection)
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
    """Return the record of a new job. It is not stored yet (`store_works`)."""
    now = services.now()
    public_json, labels, display_name, spec = (
        compact_json(public),
        draft.labels,
        draft.display_name,
        draft.spec,
    )
    _check_resource(services, name, spec, parent)
    if isinstance(spec, JobSpec):
        spec = _for_installation(services, display_name, spec)
        return Job(uid, name, display_name, public_json, now, now, labels, parent=parent, spec=spec)
    metrics = tuple(metric.id for metric in spec.study.metrics)
    spec = replace(spec, trial=_for_installation(services, display_name, spec.trial, metrics))
    first = spec.first_trial
    return TuningJob(
        uid, name, display_name, public_json, now, now, labels, parent=parent, spec=spec, next_trial=first
    )


def _check_resource(
    services: Services, name: JobName, spec: JobSpec | TuningSpec, parent: Parent | None
) -> None:
    """Raise InvalidRequest if a job can never run on the persistent resource that it specifies."""
    program = spec if isinstance(spec, JobSpec) else spec.trial
    resource = resource_of(name, program)
    if resource is None:
        return
    fault = fault_of_job(services.reservations.find(resource), str(resource), program)
    if fault is not None:
        field = "job_spec" if isinstance(spec, JobSpec) else "trial_job_spec"
        path = "training_pipeline.training_task_inputs" if parent is not None else field
        raise InvalidRequest((Violation(f"{path}.persistent_resource_id", fault),))


def compact_json(public: Mapping[str, Any], without: Container[str] = _SEPARATE_FIELDS) -> str:
    """Return a resource's public JSON for its record. Fields in `without` are omitted. Raises InvalidRequest
    if the JSON is too large for lists of resources."""
    public_json = compact_text({key: value for key, value in public.items() if key not in without})
    if len(public_json.encode()) > _MAX_JSON_SIZE:
        text = f"The resource has more than {_MAX_JSON_SIZE:,} bytes as JSON. Store long values in a bucket."
        raise InvalidRequest((Violation("", text),))
    return public_json


async def store_works(
    services: Services, principal: Principal, *works: Work, writes: tuple[Write, ...] = ()
) -> None:
    """Store new jobs, tuning jobs and pipelines in one transaction, with their creator and pinned packages.
    Create the default bucket of their project if necessary, and notify the controller. `writes`: writes of an
    addition for the last work.

    The label `trainshed-after` of a pipeline applies to its job. Raises AlreadyExists, InvalidRequest for
    invalid labels, the errors of `pin_packages` and of `Intake.create`, and Unavailable if the service is
    stopping.
    """
    if services.closing.is_set():
        raise Unavailable(
            "The service is stopping and accepts no new jobs. Submit the job again after its restart."
        )
    for work in works:
        check_labels(services, work.labels)
    project, labels = works[0].name.project_id, works[0].labels
    dependencies = await find_dependencies(services, principal, project, labels)
    new_works: list[NewWork] = []
    creator = await actor_of(services.reader, principal)
    for work in works:
        own = () if isinstance(work, Pipeline) else dependencies
        new_works.append(await new_work(services, work, creator, own))
    new_works[-1] = replace(new_works[-1], writes=writes)
    for project in {work.name.project_id for work in works}:
        await require_default_bucket(services, project)
    await services.create(*new_works)


async def new_work(
    services: Services, work: Work, creator: Actor, dependencies: tuple[Dependency, ...] = ()
) -> NewWork:
    """Return a new work with pinned packages and the first entries of its timeline. Raises the errors of
    `pin_packages`."""
    pinned = await pin_packages(services, work)
    new = replace(pinned, creator=creator, dependencies=dependencies)
    return NewWork(new, _first_entries(new, creator))


async def require_default_bucket(services: Services, project: str) -> None:
    """Create a project's default bucket if it does not exist. Raises Unavailable.

    The bucket of the service's own project is an exception: the service creates it at its start, and jobs
    wait while it is missing.
    """
    settings = services.settings
    if project == settings.project:
        return
    name = default_bucket(settings.project, project)
    if services.buckets.bucket_location(name) is None:
        await asyncio.to_thread(services.buckets.ensure, name, settings.region, project)


def check_labels(services: Services, labels: Iterable[tuple[str, str]]) -> None:
    """Raise InvalidRequest for an unknown notification target, or for an invalid value of a label that
    controls a function of the service. Otherwise a user could wrongly believe that a function is on."""
    values = dict(labels)
    wrong = [
        Violation(f"labels.{label}", f"{values[label]!r} {fault}")
        for label, (is_right, fault) in _LABELS.items()
        if label in values and not is_right(values[label])
    ]
    wanted, known = targets_of(values.items()), services.settings.notify
    unknown = [name for name in wanted if name not in known]
    if NOTIFY_LABEL in values and (unknown or not wanted):
        known_text = (
            f"Use {', '.join(sorted(known))}, with one _ between several"
            if known
            else "The operator can add targets as [[notify]] in the configuration"
        )
        names = ", ".join(map(repr, unknown)) or repr("")
        text = f"The notification target {names} does not exist. {known_text}."
        wrong.append(Violation(f"labels.{NOTIFY_LABEL}", text))
    if wrong:
        raise InvalidRequest(tuple(wrong))


def _for_installation(
    services: Services, display_name: str, spec: JobSpec, metrics: tuple[str, ...] = ()
) -> JobSpec:
    """Return the specification in the form in which this installation runs it, with additional warnings.
    `metrics`: the metric IDs of a trial."""
    if services.replace_spec is not None:
        spec = services.replace_spec(display_name, spec, metrics)
    return replace(spec, warnings=(*spec.warnings, *_warnings(services, spec)))


def _warnings(services: Services, spec: JobSpec) -> Iterator[str]:
    """Yield warnings that depend on this installation (spec/submit#warnings): about buckets that programs do
    not see as directories, GPUs that no node has (spec/queue#capacity), and disabled shells."""
    for name in dict.fromkeys(named_directories(spec.pools)):
        if services.buckets.is_unmounted(name):
            yield unmounted_bucket_warning(name)
    if warning := missing_gpu_warning(spec.pools, services.capacity.accelerators()):
        yield warning
    fields = {"enable_web_access": has_web_access(spec), "enable_dashboard_access": has_dashboard(spec)}
    if not services.allows_shells and (wanted := [name for name, is_set in fields.items() if is_set]):
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
        case PipelineJob():
            words, facts = f"a run of the pipeline {work.template}", {}
            notices = tuple(TimelineEntry(work.created, "notice", text) for text in work.notices)
        case _:
            assert_never(work)
    creator_facts = {"creator_job": str(creator.job.name)} if creator.job is not None else {}
    if work.dependencies:
        waiting = timeline.waiting_for(explain_dependencies(work.dependencies), work.created)
        notices = (*notices, waiting)
    created = TimelineEntry(
        work.created,
        "created",
        f"{work.name} was created by {creator}: {words}.",
        {"principal": creator.email, **creator_facts, **facts},
    )
    return (created, *notices)


def _notices(time: Nanos, spec: JobSpec) -> tuple[TimelineEntry, ...]:
    return (
        *(
            TimelineEntry(time, "warning" if text in spec.substitutions else "notice", text)
            for text in spec.runtime_notices
        ),
        *(TimelineEntry(time, "warning", text) for text in spec.warnings),
    )


def _missing_buckets(
    uses: Iterable[BucketUse], buckets: BucketProbe, project: str, account: str | None = None
) -> Iterator[Violation]:
    """Yield a violation for each well-formed URI whose bucket does not exist, or belongs to another project
    and is not accessible. `account`: the service account of the programs; None = any account. The check of
    the specification reports malformed URIs."""
    known: dict[str, str | None] = {}
    for field, uri in uses:
        if not uri or bucket_path_fault(uri):
            continue
        bucket = uri[5:].partition("/")[0]
        if bucket not in known:
            known[bucket] = _missing_bucket_text(bucket, buckets, project, account)
        if known[bucket] is not None:
            yield Violation(field, f"The bucket {bucket!r} of {uri!r} does not exist{known[bucket]}")


def _missing_bucket_text(bucket: str, buckets: BucketProbe, project: str, account: str | None) -> str | None:
    """Return the end of a sentence about a missing or inaccessible bucket, or None if programs may use the
    bucket."""
    if buckets.bucket_location(bucket) is None:
        return f". Create it first, for example with `gcloud storage buckets create gs://{bucket}`."
    if buckets.is_closed(bucket, project, account):
        return (
            f" for the project {project!r}, because it belongs to another project. Use a "
            f"bucket of {project!r} "
            "or a shared bucket, or grant the job's service account a role in the bucket's IAM policy."
        )
    return None


_MAX_CONTENT_SIZE: Final = Bytes(256 << 20)
"""Maximum size in bytes of the packages that the service reads for one new job. The limit is sufficient for
code, and the service can read that many bytes in a short time."""

Digests = Mapping[str, str]
"""SHA-256 digests of packages, or prefixes of digests, by URI; "" = not pinned."""


async def pin_packages(services: Services, work: Work) -> Work:
    """Return a new job, tuning job or pipeline with pinned packages. It includes a warning for each package
    that cannot be pinned.

    Raises FailedPrecondition if a package does not have the digest in its path, or the digest that it has in
    the copied job. Raises InvalidRequest if the copied job does not exist.
    """
    if isinstance(work, Pipeline | PipelineJob):
        return work  # The jobs of a pipeline are stored separately, and their packages are pinned then.
    spec = work.spec if isinstance(work, Job) else work.spec.trial
    uris = tuple(dict.fromkeys(uri for pool in spec.pools for uri in pool.program.package_uris))
    if not uris:
        return work
    project = work.name.project_id
    account = service_account(project, spec)
    # The service fetches all of these packages itself, including those in a container's arguments.
    named_by = (("package_uris", uri) for uri in uris)
    if closed := tuple(_missing_buckets(named_by, services.buckets, project, account)):
        raise InvalidRequest(closed)
    before = await _copied_digests(services.reader, work)
    required = {uri: before.get(uri) or digest_in(uri) for uri in uris}
    contents = await asyncio.to_thread(_read_contents, services.buckets, uris)
    packages = [JobPackage(uri, required[uri]) for uri in uris]
    pairs = [(package, contents[package.uri].sha256) for package in packages]
    if faults := [fault for pin, digest in pairs if digest and (fault := pin.fault(digest))]:
        raise FailedPrecondition("\n".join(faults))
    digests = {package.uri: digest or package.digest for package, digest in pairs}
    unknown = (_warning(uri, contents[uri]) for uri in uris if not digests[uri])
    pools = tuple(_with_digests(pool, digests) for pool in spec.pools)
    spec = replace(spec, pools=pools, warnings=(*spec.warnings, *unknown))
    if isinstance(work, Job):
        return replace(work, spec=spec)
    return replace(work, spec=replace(work.spec, trial=spec))


def _with_digests(pool: WorkerPool, digests: Digests) -> WorkerPool:
    own = tuple(digests[uri] for uri in pool.program.package_uris)
    return replace(pool, program=replace(pool.program, package_digests=own))


def _read_contents(buckets: BucketProbe, uris: Iterable[str]) -> dict[str, ContentDigest]:
    """Return the digests of packages, as far as the maximum total size allows. Blocks."""
    contents: dict[str, ContentDigest] = {}
    left = _MAX_CONTENT_SIZE
    for uri in uris:
        contents[uri] = buckets.digest(uri, left)
        left = Bytes(max(0, left - contents[uri].size))
    return contents


def _warning(uri: str, contents: ContentDigest) -> str:
    return (
        f"The package {uri} {contents.unknown}, so the job is not pinned to its content. The job installs "
        "the content at its start."
    )


async def _copied_digests(reader: Reader, work: Job | TuningJob) -> Digests:
    """Return the digests of packages in the job that this job copies; {} if this job is not a copy."""
    text = dict(work.labels).get(COPY_LABEL, "")
    if not text:
        return {}
    try:
        old, _ = await find_by_uid(reader, text)
        if isinstance(old, Pipeline):
            old, _ = await reader.job_by_uid(old.job)
    except NotFound:
        old = None
    if old is None or isinstance(old, Pipeline | PipelineJob) or old.name.project_id != work.name.project_id:
        wrong = (
            f"The job {text!r} does not exist in the project {work.name.project_id}. Remove the label: the "
            "job then uses the current packages."
        )
        raise InvalidRequest((Violation(f"labels.{COPY_LABEL}", wrong),))
    spec = old.spec if isinstance(old, Job) else old.spec.trial
    packages = (archive for pool in spec.pools for archive in pool.program.packages)
    return {package.uri: package.digest for package in packages}
