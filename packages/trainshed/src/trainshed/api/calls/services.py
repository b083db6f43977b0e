"""Dependencies of handlers: stores, clocks and settings, which the composition root passes in."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, BinaryIO, Protocol

from google.protobuf.message import Message
from msgspec import Struct, field

from trainshed.access.principals import Credential, Principal
from trainshed.access.sealing import Sealer
from trainshed.api.calls.links import Links, Tickets
from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.progress import ProgressReader, list_progress_reader, page_progress_reader
from trainshed.api.calls.versions import BetaOperations
from trainshed.core.capacity import Load, NodeStatus, Preflight, QuotaStatus, Waiting
from trainshed.core.curves import CurveWriter
from trainshed.core.errors import Violation
from trainshed.core.job import JobSpec
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobName, JobUid, ReplicaId
from trainshed.core.reservations import Change, PersistentResource, PersistentResourceName, Used
from trainshed.core.runtime import RuntimeCatalog
from trainshed.core.study.records import MAX_TRIALS, StudyUid
from trainshed.core.study.spec import StudySpec
from trainshed.core.terminals import Terminals
from trainshed.core.units import Bytes, Nanos
from trainshed.core.usage import Prices, Use
from trainshed.core.works import Work
from trainshed.store.access_keeper import AccessKeeper
from trainshed.store.logs.reader import LogReader
from trainshed.store.notices import Notices
from trainshed.store.points import PointFiles
from trainshed.store.records import Operation
from trainshed.store.sqlite.jobs import Intake
from trainshed.store.sqlite.models import Evaluations, Models
from trainshed.store.sqlite.reader import Reader
from trainshed.store.sqlite.resources import Curves, Datasets, Notifications, Secrets
from trainshed.store.sqlite.studies import Studies
from trainshed.studies.port import TrialData
from trainshed.telemetry.meters import Lag, Meters
from trainshed.wire.trainshed_v1.jobs import Outlook, ViewLink

Authenticate = Callable[[str | None], Awaitable[Principal]]
"""Returns the principal of an `Authorization` header. Raises Unauthenticated, Unavailable."""


class ContentDigest(Struct, frozen=True):
    """The digest and size of an object's content."""

    #: SHA-256 in hexadecimal digits; None = not known.
    sha256: str | None = None
    size: Bytes = Bytes(0)
    #: The reason why the digest is not known, as a clause about the object; None = the digest is known.
    unknown: str | None = None


class Exports(Protocol):
    """Exports models and datasets in the background."""

    def moment(self) -> Nanos:
        """Return the current time (ns) for the name of an export's directory. Every export has a different
        millisecond."""
        ...

    async def begin(self, operation: Operation) -> None:
        """Store an export and start it. A notice of its subject announces its end."""
        ...

    def stop(self, name: str) -> None:
        """Stop writing for a cancelled operation. Has no effect on other operations."""
        ...


class BucketProbe(Protocol):
    """The API's view of the buckets. Methods are cheap and read small files at most, unless their docstrings
    state otherwise."""

    def ensure(self, name: str, location: str, project: str) -> None:
        """Create a project's bucket if it does not exist. Waits for the disk: call it in a thread. Raises
        Unavailable."""
        ...

    def bucket_location(self, name: str) -> str | None:
        """Return a bucket's location (`US`, `us-central1`), or None if no bucket has this name."""
        ...

    def is_closed(self, name: str, project: str, account: str | None = None) -> bool:
        """Whether a project's programs may not read from an existing bucket as this service account; None =
        as any account."""
        ...

    def is_unmounted(self, name: str) -> bool:
        """Whether the bucket exists and programs do not see it as /gcs/NAME."""
        ...

    def visible_buckets(self, project: str) -> tuple[tuple[str, str], ...]:
        """Return the buckets that a project's programs can see, by name and directory. Raises Unavailable."""
        ...

    def open(self, uri: str) -> BinaryIO:
        """Open the content of an object. Blocks. Raises FileNotFoundError, and OSError if the object exists
        but cannot be read."""
        ...

    def digest(self, uri: str, limit: Bytes) -> "ContentDigest":
        """Return the digest of an object's content if the content has at most `limit` bytes. Reads the
        complete content: call it in a thread."""
        ...

    def has_object(self, uri: str) -> bool:
        """Whether an object matches a gs:// URI, which may contain wildcards such as `*`. May block for a
        long time: call it in a thread."""
        ...

    def last_written(self, uri: str) -> Nanos | None:
        """Return the last write time (ns) below a gs:// URI; 0 = no objects, None = not known. Call it in a
        thread."""
        ...


class CapacityView(Protocol):
    """The controller's view of capacity: nodes, quotas, and waiting jobs with their reasons. Cheap; never
    blocks."""

    def why(self, uid: JobUid) -> Waiting | None:
        """Return the reason why a job waits, or None if it does not wait."""
        ...

    def position(self, uid: JobUid) -> int:
        """Return a job's position in the queue, 1 = next; 0 = the job does not wait."""
        ...

    async def preflight(self, job: Job) -> Preflight:
        """Return whether a job like this unstored one would be admitted now. Raises Unavailable."""
        ...

    def nodes(self) -> tuple[NodeStatus, ...]: ...

    def accelerators(self) -> tuple[str, ...]: ...

    def quotas(self, project_id: str) -> tuple[QuotaStatus, ...]:
        """Return all quotas of the project with a limit or with usage."""
        ...

    def holding(self) -> tuple[Job, ...]:
        """Return the jobs that occupy capacity now."""
        ...

    def uses(self, job: Job, until: Nanos) -> tuple[Use, ...]:
        """Return the usage of a job's newest attempt up to a time."""
        ...

    def load(self) -> Load:
        """Return the total load of all projects."""
        ...

    async def readmit(self, node: str) -> None:
        """Return an unfit node to service. Raises Unavailable."""
        ...

    async def capacity_changed(self) -> None:
        """Notify the controller of changes to drained nodes or quotas in the store."""
        ...


class Reservations(Protocol):
    """The persistent resources of the service."""

    async def wait_for_changes(self) -> None:
        """Wait until no change is being stored. A reader of a finished operation then sees its effect."""
        ...

    def get(self, name: PersistentResourceName) -> PersistentResource:
        """Return a persistent resource. Raises NotFound."""
        ...

    def find(self, name: PersistentResourceName) -> PersistentResource | None: ...

    def of_location(self, project_id: str, location: str) -> tuple[PersistentResource, ...]:
        """Return the resources of a location, by name."""
        ...

    def usage(self, name: PersistentResourceName) -> Used: ...

    def why(self, resource: PersistentResource) -> Waiting | None:
        """Return the reason why machines of a resource are not reserved yet; None = all machines are
        reserved."""
        ...

    def uses(self, until: Nanos) -> Iterable[Use]:
        """Return the reserved usage of all resources up to a time."""
        ...

    async def create(self, resource: PersistentResource, operation: Operation) -> None:
        """Store a new resource with its running operation, and request its machines. Raises AlreadyExists."""
        ...

    async def change(
        self, name: PersistentResourceName, change: Change, begun: Operation | None = None
    ) -> None:
        """Replace a resource by the result of `change`, a pure function, and store a new running operation.
        Raises NotFound and the errors of `change`."""
        ...


Spec = Mapping[str, Any]
"""A CustomJobSpec in public JSON."""


class Tracking(Protocol):
    """The relation of jobs to experiments, TensorBoards and viewers, which an addition implements. All
    methods raise Unavailable, in addition to their own errors."""

    async def missing_references(
        self, place: LocationName, spec: Spec, path: str
    ) -> tuple[Violation, ...]:
        """Return violations for names in a job's specification that do not exist in that location. `path`:
        the field of the specification in the request."""
        ...

    def make_run(self, experiment: str) -> AbstractAsyncContextManager[str]:
        """Create a run for a job without one and yield its name. Deletes the run if the caller's block
        raises."""
        ...

    async def add_to_run(self, run: str, job: JobName) -> None:
        """Add a job to its run if the run still exists."""
        ...

    def curves(self, job: Job) -> CurveWriter | None:
        """Return the writer of the job's curves to its TensorBoard, or None if the job has no TensorBoard."""
        ...

    async def view(self, works: Sequence[Work], shown: Credential) -> ViewLink:
        """Return a link to the event files of these jobs, tuning jobs or pipelines, for the owner of the
        credentials. Raises FailedPrecondition if they have no directory for event files."""
        ...

    async def link_if_any(self, work: Work, shown: Credential) -> str | None:
        """Return the link to the event files of a job, tuning job or pipeline, or None if it wrote none."""
        ...

    def end_views(self, job: JobUid) -> None:
        """Close the views of a job without waiting."""
        ...

    async def close(self) -> None:
        """Close all views of jobs and wait until they are closed."""
        ...


WriteLog = Callable[[JobUid, int, ReplicaId, Sequence[str]], Awaitable[None]]
"""Appends lines to the log of a live replica of an attempt, as if its program had printed them. Raises
Unavailable."""


class ApiSettings(Struct, frozen=True):
    """Properties of this installation that responses contain."""

    #: The service's version.
    version: str
    #: Default project for clients without their own setting.
    project: str
    #: Default region for clients without their own setting.
    region: str
    #: Address of the pages of jobs to which errors refer.
    pages: str
    #: Maximum number of trials of a study; 0 = no limit.
    max_study_trials: int = MAX_TRIALS
    prices: Prices = Prices()
    #: Notification targets that jobs may use.
    notify: tuple[str, ...] = ()
    #: The service's data directory; None = not known.
    data: str | None = None
    #: Retention time of finished jobs, as in the settings; None = forever.
    retention_jobs: str | None = None
    #: The scheduler that assigns nodes to jobs, such as Slurm; "" = the service itself.
    queue: str = ""


class Services(Struct, frozen=True):
    """All dependencies of handlers."""

    intake: Intake
    reader: Reader
    studies: Studies
    models: Models
    evaluations: Evaluations
    datasets: Datasets
    points: PointFiles
    curves: Curves
    secrets: Secrets
    sealer: Sealer
    access: AccessKeeper
    logs: LogReader
    notices: Notices
    runtimes: RuntimeCatalog
    buckets: BucketProbe
    #: Returns the current time in nanoseconds since the epoch.
    now: Callable[[], int]
    #: Returns a new unique ID. IDs increase with time.
    new_uid: Callable[[], JobUid]
    #: Notifies the controller that a job has work to do.
    wake: Callable[[JobUid], None]
    #: Stores new jobs, tuning jobs and pipelines, all or none, and wakes the controller. Raises the errors of
    #: `Intake.create`.
    create: Callable[..., Awaitable[None]]
    #: Notifies the controller of a waiting operation of a study. A notice of `JobUid(study)` announces its
    #: end.
    suggest: Callable[[StudyUid], None]
    exports: Exports
    #: Returns the prediction of a study's model over some of its parameters, based on its trials. Raises
    #: AdvisorFailed.
    outlook: Callable[[StudySpec, Sequence[TrialData], Sequence[str]], Awaitable[Outlook]]
    capacity: CapacityView
    reservations: Reservations
    links: Links
    tickets: Tickets
    shells: Terminals
    settings: ApiSettings
    #: Whether the operator allows shells.
    allows_shells: bool = True
    #: None = the addition is not installed.
    tracking: Tracking | None = None
    #: None = the engine does not accept log lines.
    write_log: WriteLog | None = None
    #: Set when the server shuts down. Streams then end, and new jobs are rejected.
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    #: The isolation and limits that the engine provides on this machine.
    promises: Callable[[], Mapping[str, object]] = dict[str, object]
    #: Returns the current delay of the event loop.
    lag: Callable[[], Lag] = Lag
    #: Start time of the service in ns since the epoch; None = not known.
    started: Nanos | None = None
    #: Notifications to send; None = notifications are off.
    outbox: Notifications | None = None
    #: Returns the specification to run in place of a new job's specification, given the job's display name
    #: and the metric IDs of a trial (`trainshed emulate`). Raises the error that rejects the job. None = jobs
    #: run unchanged.
    replace_spec: Callable[[str, JobSpec, tuple[str, ...]], JobSpec] | None = None
    #: Called with each request of the public APIs and its full method name; None = disabled.
    on_request: Callable[[str, Message], None] | None = None
    #: Counters of requests and jobs.
    meters: Meters = field(default_factory=Meters)
    #: Progress and printed measures of programs, for lists of jobs.
    list_progress: ProgressReader = field(default_factory=list_progress_reader)
    #: The same with more points, for the pages of single jobs.
    page_progress: ProgressReader = field(default_factory=page_progress_reader)
    #: The operations that `v1beta1` callers have created, for all transports.
    beta: BetaOperations = field(default_factory=BetaOperations)
