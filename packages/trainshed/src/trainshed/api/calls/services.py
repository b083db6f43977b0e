"""Dependencies of handlers: stores, clocks and settings. The composition root of the service creates them."""

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
from trainshed.core.runtime import ServiceCatalog
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
"""A function that returns the principal of an `Authorization` header. Raises Unauthenticated and Unavailable.
"""


class ContentDigest(Struct, frozen=True):
    """The digest and size of an object's content."""

    #: SHA-256 in hexadecimal digits; None = not known.
    sha256: str | None = None
    size: Bytes = Bytes(0)
    #: The reason why the digest is not known, as a clause whose subject is the object; None = the digest is
    #: known.
    unknown: str | None = None


class Exports(Protocol):
    """Exports models and datasets in the background."""

    def moment(self) -> Nanos:
        """Return a time (ns) for the name of an export's directory. The result is the current time, or a
        little later: no two exports have the same millisecond."""
        ...

    async def start_export(self, operation: Operation) -> None:
        """Store an export and start it. A notice about the exported resource announces the end of the
        export."""
        ...

    def stop(self, name: str) -> None:
        """Stop the export of a cancelled operation. Has no effect if the operation is not an export."""
        ...


class BucketProbe(Protocol):
    """The API's view of the buckets. Methods are fast and read at most small files, unless their docstrings
    state otherwise."""

    def ensure(self, name: str, location: str, project: str) -> None:
        """Create a project's bucket if it does not exist. Waits for the disk, so it must be called in a
        thread. Raises Unavailable."""
        ...

    def bucket_location(self, name: str) -> str | None:
        """Return a bucket's location (`US`, `us-central1`), or None if no bucket has this name."""
        ...

    def is_closed(self, name: str, project: str, account: str | None = None) -> bool:
        """Whether programs of a project may not read from an existing bucket. `account`: the service account
        of the programs; None = any account."""
        ...

    def is_unmounted(self, name: str) -> bool:
        """Whether the bucket exists and programs do not see it as /gcs/NAME."""
        ...

    def visible_buckets(self, project: str) -> tuple[tuple[str, str], ...]:
        """Return (name, directory) of each bucket that a project's programs can see. Raises Unavailable."""
        ...

    def open(self, uri: str) -> BinaryIO:
        """Open the contents of an object. Blocks. Raises FileNotFoundError if the object does not exist, and
        OSError if it cannot be read."""
        ...

    def digest(self, uri: str, limit: Bytes) -> "ContentDigest":
        """Return the digest of an object's contents if they have at most `limit` bytes. Reads all of the
        contents, so it must be called in a thread."""
        ...

    def has_object(self, uri: str) -> bool:
        """Whether an object matches a gs:// URI, which may contain wildcards such as `*`. May block for a
        long time, so it must be called in a thread."""
        ...

    def make_directory(self, uri: str) -> None:
        """Create the directory of a gs:// URI, so that programs can write files to it. Must be called in a
        thread. Raises FailedPrecondition if that is not possible."""
        ...

    def last_written(self, uri: str) -> Nanos | None:
        """Return the last write time (ns) of all objects below a gs:// URI; 0 = no objects, None = not known.
        Must be called in a thread."""
        ...


class CapacityView(Protocol):
    """The controller's view of capacity: nodes, quotas, and the reasons why jobs wait. Its methods are fast
    and never block, except for coroutines."""

    def explain_wait(self, uid: JobUid) -> Waiting | None:
        """Return the reason why a job waits, or None if it does not wait."""
        ...

    def position(self, uid: JobUid) -> int:
        """Return the position of a job in the queue, starting at 1; 0 = the job does not wait."""
        ...

    async def preflight(self, job: Job) -> Preflight:
        """Return whether a job with this specification would be admitted now. The job is not stored. Raises
        Unavailable."""
        ...

    def nodes(self) -> tuple[NodeStatus, ...]: ...

    def accelerators(self) -> tuple[str, ...]: ...

    def quotas(self, project_id: str) -> tuple[QuotaStatus, ...]:
        """Return all quotas of the project that have a limit or usage."""
        ...

    def placed_jobs(self) -> tuple[Job, ...]:
        """Return the jobs that occupy capacity."""
        ...

    def uses(self, job: Job, until: Nanos) -> tuple[Use, ...]:
        """Return the usage of a job's newest attempt, up to a time."""
        ...

    def load(self) -> Load:
        """Return the current numbers of jobs and the usage of all projects, for metrics and the console."""
        ...

    async def readmit(self, node: str) -> None:
        """Return a quarantined node to service. Raises Unavailable."""
        ...

    async def capacity_changed(self) -> None:
        """Notify the controller that drained nodes or quotas in the store have changed."""
        ...


class Reservations(Protocol):
    """The persistent resources of the service."""

    async def wait_for_changes(self) -> None:
        """Wait until all current changes of persistent resources are stored. After that, a caller who reads a
        finished operation also reads the resource that the operation has changed."""
        ...

    def get(self, name: PersistentResourceName) -> PersistentResource:
        """Return a persistent resource. Raises NotFound."""
        ...

    def find(self, name: PersistentResourceName) -> PersistentResource | None: ...

    def of_location(self, project_id: str, location: str) -> tuple[PersistentResource, ...]:
        """Return the persistent resources of a location, sorted by name."""
        ...

    def usage(self, name: PersistentResourceName) -> Used: ...

    def explain_wait(self, resource: PersistentResource) -> Waiting | None:
        """Return the reason why some machines of a resource are not reserved yet; None = all machines are
        reserved."""
        ...

    def uses(self, until: Nanos) -> Iterable[Use]:
        """Return the usage of the reserved machines of all resources, up to a time."""
        ...

    async def create(self, resource: PersistentResource, operation: Operation) -> None:
        """Store a new resource with its unfinished operation, and request its machines. Raises
        AlreadyExists."""
        ...

    async def change(
        self, name: PersistentResourceName, change: Change, begun: Operation | None = None
    ) -> None:
        """Replace a resource by the result of `change`, which is a pure function. `begun`: a new unfinished
        operation to store. Raises NotFound and the errors of `change`."""
        ...


Spec = Mapping[str, Any]
"""A CustomJobSpec in public JSON."""


class Tracking(Protocol):
    """The relation of jobs to experiments, TensorBoards and viewers. An addition implements it. All methods
    raise Unavailable in addition to their own errors."""

    async def missing_references(self, place: LocationName, spec: Spec, path: str) -> tuple[Violation, ...]:
        """Return violations for references in a job's specification to resources that do not exist in the
        location `place`. `path`: the field of the specification in the request."""
        ...

    def create_run(self, experiment: str) -> AbstractAsyncContextManager[str]:
        """Create a run for a job and yield the run's name. If the caller's block raises an exception, delete
        the run."""
        ...

    async def add_to_run(self, run: str, job: JobName) -> None:
        """Add a job to a run, if the run still exists."""
        ...

    def curves(self, job: Job) -> CurveWriter | None:
        """Return the writer that copies the job's curves to its TensorBoard, or None if the job has no
        TensorBoard."""
        ...

    async def view(self, works: Sequence[Work], shown: Credential) -> ViewLink:
        """Return a link to a view of the event files of these jobs, tuning jobs or pipelines. `shown`: the
        credentials of the link's owner. Raises FailedPrecondition if none of them has a directory for event
        files."""
        ...

    async def link_if_any(self, work: Work, shown: Credential) -> str | None:
        """Return a link to a view of the event files of a job, tuning job or pipeline, or None if no event
        files exist. `shown`: the credentials of the link's owner."""
        ...

    def end_views(self, job: JobUid) -> None:
        """Close the views of a job. Does not wait until they are closed."""
        ...

    async def close(self) -> None:
        """Close all views of jobs and wait until they are closed."""
        ...


WriteLog = Callable[[JobUid, int, ReplicaId, Sequence[str]], Awaitable[None]]
"""A function that appends lines to the log of a live replica in an attempt, as if the replica's program had
printed them. Raises Unavailable."""


class ApiSettings(Struct, frozen=True):
    """Properties of this installation that appear in responses."""

    #: The service's version.
    version: str
    #: Default project of clients that specify none.
    project: str
    #: Default region of clients that specify none.
    region: str
    #: Address of the console's pages of jobs, for links in errors.
    pages: str
    #: Maximum number of trials of a study; 0 = no limit.
    max_study_trials: int = MAX_TRIALS
    prices: Prices = Prices()
    #: Notification targets that jobs can select.
    notify: tuple[str, ...] = ()
    #: The service's data directory; None = not known.
    data: str | None = None
    #: Retention period of finished jobs, in the form of the settings; None = forever.
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
    runtimes: ServiceCatalog
    buckets: BucketProbe
    #: Returns the current time in nanoseconds since the epoch.
    now: Callable[[], int]
    #: Returns a new unique ID. IDs increase with time.
    new_uid: Callable[[], JobUid]
    #: Notifies the controller that a job has work to do.
    wake: Callable[[JobUid], None]
    #: Stores new jobs, tuning jobs and pipelines in one transaction, and notifies the controller. Raises the
    #: errors of `Intake.create`.
    create: Callable[..., Awaitable[None]]
    #: Notifies the controller of an unfinished operation of a study. A notice with the UID of the study
    #: announces the operation's end.
    suggest: Callable[[StudyUid], None]
    exports: Exports
    #: Returns the prediction of a study's model over some of the study's parameters, based on its trials.
    #: Raises AdvisorFailed.
    outlook: Callable[[StudySpec, Sequence[TrialData], Sequence[str]], Awaitable[Outlook]]
    capacity: CapacityView
    reservations: Reservations
    links: Links
    tickets: Tickets
    shells: Terminals
    settings: ApiSettings
    #: Whether the operator allows shells.
    allows_shells: bool = True
    #: Experiments, TensorBoards and viewers of jobs; None = the tracking addition is not installed.
    tracking: Tracking | None = None
    #: Appends lines to the logs of replicas; None = the engine does not support this.
    write_log: WriteLog | None = None
    #: Set when the server shuts down. Streams then end, and new jobs are rejected.
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    #: Returns the isolation and the limits that the engine provides on this machine.
    promises: Callable[[], Mapping[str, object]] = dict[str, object]
    #: Returns the current delay of the event loop.
    lag: Callable[[], Lag] = Lag
    #: Start time of the service in ns since the epoch; None = not known.
    start_time: Nanos | None = None
    #: The notifications that wait to be sent; None = notifications are disabled.
    outbox: Notifications | None = None
    #: Returns the specification that runs in place of a new job's specification (`trainshed emulate`).
    #: Arguments: the job's display name, its specification, and the metric IDs of a trial. May raise an
    #: error, which rejects the job. None = specifications are not replaced.
    replace_spec: Callable[[str, JobSpec, tuple[str, ...]], JobSpec] | None = None
    #: Called with the full method name and the request of each call of the public APIs; None = disabled.
    on_request: Callable[[str, Message], None] | None = None
    #: Counters of requests and jobs.
    meters: Meters = field(default_factory=Meters)
    #: Reads the progress and the printed metrics of programs, for lists of jobs.
    list_progress: ProgressReader = field(default_factory=list_progress_reader)
    #: Reads the same values with more points, for the pages of single jobs.
    page_progress: ProgressReader = field(default_factory=page_progress_reader)
    #: The operations that `v1beta1` callers of all transports have created.
    beta: BetaOperations = field(default_factory=BetaOperations)
