"""What handlers work with: stores, clocks and settings, handed in by the composition root."""

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
from trainshed.api.calls.progress import LogBook, book_of_curves, book_of_lists
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
    """What an object contains."""

    #: SHA-256 in hexadecimal digits; None = it is not known.
    sha256: str | None = None
    size: Bytes = Bytes(0)
    #: Why it is not known, as a clause about the object; None = it is.
    unknown: str | None = None


class Exports(Protocol):
    """Carries out exports of models and datasets beside requests."""

    def moment(self) -> Nanos:
        """Return the current time (ns) for the name of an export's directory. No two exports have the same
        millisecond."""
        ...

    async def begin(self, operation: Operation) -> None:
        """Store an export, and start it. Its end is published as a notice of its subject."""
        ...

    def stop(self, name: str) -> None:
        """Stop writing for a cancelled operation. Does nothing if it is no running export."""
        ...


class BucketProbe(Protocol):
    """What the API asks of the buckets. Cheap, unless noted: it reads small files at most."""

    def ensure(self, name: str, location: str, project: str) -> None:
        """Make a project's bucket if it is not there. Waits for the disk: call it in a thread. Raises
        Unavailable."""
        ...

    def bucket_location(self, name: str) -> str | None:
        """Return a bucket's location (`US`, `us-central1`); None if there is no bucket of this name."""
        ...

    def is_closed(self, name: str, project: str, account: str | None = None) -> bool:
        """Whether programs of a project may not read from an existing bucket as this service account; None =
        under any."""
        ...

    def is_unmounted(self, name: str) -> bool:
        """Whether there is such a bucket, and programs do not see it as /gcs/NAME."""
        ...

    def shown(self, project: str) -> tuple[tuple[str, str], ...]:
        """Return those that a project's programs see, by name and directory. Raises Unavailable."""
        ...

    def open(self, uri: str) -> BinaryIO:
        """Open the content of an object. Blocks. Raises FileNotFoundError, and OSError if the object exists
        and cannot be read."""
        ...

    def digest(self, uri: str, limit: Bytes) -> "ContentDigest":
        """Return the digest of an object's content, if that has at most `limit` bytes. It reads all of the
        content: call it in a thread."""
        ...

    def has_object(self, uri: str) -> bool:
        """Whether there is an object that matches a gs:// URI, which may have wildcards such as `*`. May
        block for long: call it in a thread."""
        ...

    def last_written(self, uri: str) -> Nanos | None:
        """Return when something below a gs:// URI was last written (ns); 0 = there is nothing, None = it
        cannot be known. Call it in a thread."""
        ...


class CapacityView(Protocol):
    """What the controller knows about capacity: nodes, quotas, which jobs wait and why. Cheap, never
    blocks."""

    def why(self, uid: JobUid) -> Waiting | None:
        """Return why a job waits; None if it does not."""
        ...

    def position(self, uid: JobUid) -> int:
        """Return a job's position among those that wait, 1 = next; 0 = it does not wait."""
        ...

    async def preflight(self, job: Job) -> Preflight:
        """Return whether a job like this one, which is not stored, would be admitted now. Raises
        Unavailable."""
        ...

    def nodes(self) -> tuple[NodeStatus, ...]: ...

    def accelerators(self) -> tuple[str, ...]: ...

    def quotas(self, project_id: str) -> tuple[QuotaStatus, ...]:
        """Return every quota of the project that has a limit or is used."""
        ...

    def holding(self) -> tuple[Job, ...]:
        """Return the jobs that hold places now."""
        ...

    def uses(self, job: Job, until: Nanos) -> tuple[Use, ...]:
        """Return what the newest attempt of a job has used until a moment."""
        ...

    def load(self) -> Load:
        """Return the load of all projects together."""
        ...

    async def readmit(self, node: str) -> None:
        """Let a node that was found unfit take work again. Raises Unavailable."""
        ...

    async def capacity_changed(self) -> None:
        """Tell the controller that drained nodes or quotas were changed in the store."""
        ...


class Reserving(Protocol):
    """The persistent resources of the service."""

    async def wait_for_changes(self) -> None:
        """Wait until no change is being stored: a reader of a finished operation then sees its effect."""
        ...

    def get(self, name: PersistentResourceName) -> PersistentResource:
        """Raises NotFound."""
        ...

    def find(self, name: PersistentResourceName) -> PersistentResource | None: ...

    def of_location(self, project_id: str, location: str) -> tuple[PersistentResource, ...]:
        """Return the resources of a location, by name."""
        ...

    def used(self, name: PersistentResourceName) -> Used: ...

    def why(self, resource: PersistentResource) -> Waiting | None:
        """Return why machines of a resource are not reserved yet; None = all are."""
        ...

    def uses(self, until: Nanos) -> Iterable[Use]:
        """Return what all resources have reserved until a moment."""
        ...

    async def create(self, resource: PersistentResource, operation: Operation) -> None:
        """Store a new resource with its running operation, and request its machines. Raises AlreadyExists."""
        ...

    async def change(
        self, name: PersistentResourceName, change: Change, begun: Operation | None = None
    ) -> None:
        """Replace a resource by what `change`, a pure function, returns for it, with a new running operation.
        Raises NotFound, and what `change` raises."""
        ...


Spec = Mapping[str, Any]
"""A CustomJobSpec in public JSON."""


class Tracking(Protocol):
    """What jobs have to do with experiments, tensorboards and what shows these: an addition's. Methods raise
    Unavailable, and as they say."""

    async def unknown(self, place: LocationName, spec: Spec, path: str) -> tuple[Violation, ...]:
        """Return violations for what a job in that location names and does not exist. `path`: of the
        specification in the request."""
        ...

    def make_run(self, experiment: str) -> AbstractAsyncContextManager[str]:
        """Make a run for a job that names none, and yield its name; delete it if what follows raises."""
        ...

    async def add_to_run(self, run: str, job: JobName) -> None:
        """Add a job to its run, if that still exists."""
        ...

    def curves(self, job: Job) -> CurveWriter | None:
        """Return what writes the job's curves to the tensorboard that it names; None = it names none."""
        ...

    async def view(self, works: Sequence[Work], shown: Credential) -> ViewLink:
        """Return a link, for whoever has shown this, to what these works wrote. Raises FailedPrecondition
        if they were told no directory for event files."""
        ...

    async def link_if_any(self, work: Work, shown: Credential) -> str | None:
        """Return such a link to what a work wrote; None = it wrote nothing."""
        ...

    def end_views(self, job: JobUid) -> None:
        """End what shows a job, without waiting for that."""
        ...

    async def close(self) -> None:
        """End all that shows jobs, and wait until it is gone."""
        ...


WriteLog = Callable[[JobUid, int, ReplicaId, Sequence[str]], Awaitable[None]]
"""Adds lines to the log of a live replica of an attempt, as if its program had printed them. Raises
Unavailable."""


class ApiSettings(Struct, frozen=True):
    """What answers say of this installation."""

    #: The service's version.
    version: str
    #: Default of clients that were told nothing else, as is `region`.
    project: str
    region: str
    #: Address of the pages of jobs to which errors refer.
    pages: str
    #: Most trials of a study; 0 = any number.
    max_study_trials: int = MAX_TRIALS
    prices: Prices = Prices()
    #: Notification targets that jobs may name.
    notify: tuple[str, ...] = ()
    #: The service's data directory; None = not known.
    data: str | None = None
    #: How long a job is kept after its end, as in the settings; None = for ever.
    retention_jobs: str | None = None
    #: The scheduler that gives jobs their nodes instead of the service, such as Slurm; "" = the service does.
    queue: str = ""


class Services(Struct, frozen=True):
    """Everything a handler may use."""

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
    #: Nanoseconds since the epoch.
    now: Callable[[], int]
    #: Returns a fresh identity; they ascend with time.
    new_uid: Callable[[], JobUid]
    #: Tells the controller that a job has something to do.
    wake: Callable[[JobUid], None]
    #: Stores new jobs, tuning jobs and pipelines, all or none, and wakes the controller for them. Raises as
    #: `Intake.create`.
    create: Callable[..., Awaitable[None]]
    #: Tells the controller that an operation of a study waits. Its end is published as a notice of
    #: `JobUid(study)`.
    suggest: Callable[[StudyUid], None]
    exports: Exports
    #: Returns what the model of a study expects over some of its parameters, given its trials. Raises
    #: AdvisorFailed.
    outlook: Callable[[StudySpec, Sequence[TrialData], Sequence[str]], Awaitable[Outlook]]
    capacity: CapacityView
    reservations: Reserving
    links: Links
    tickets: Tickets
    shells: Terminals
    settings: ApiSettings
    #: Whether the operator allows shells.
    allows_shells: bool = True
    #: None = its addition is not installed.
    tracking: Tracking | None = None
    #: None = the engine takes no lines.
    write_log: WriteLog | None = None
    #: Set when the server shuts down, so that streams end and no more jobs are taken.
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    #: What the engine can isolate and limit here.
    promises: Callable[[], Mapping[str, object]] = dict[str, object]
    #: Returns how late the event loop is.
    lag: Callable[[], Lag] = Lag
    #: When the service began, in ns since the epoch; None = not known.
    started: Nanos | None = None
    #: Notifications to be sent; None = nobody is ever notified.
    outbox: Notifications | None = None
    #: Returns what is run in place of a new job's specification, given its display name and the ids of
    #: the metrics of a trial (`trainshed emulate`). Raises what refuses the job. None = jobs run as they are.
    instead: Callable[[str, JobSpec, tuple[str, ...]], JobSpec] | None = None
    #: Is shown each request of the public APIs, after the full name of its method; None = nobody is.
    sent: Callable[[str, Message], None] | None = None
    #: What is counted of requests and jobs.
    meters: Meters = field(default_factory=Meters)
    #: How far the programs are that somebody has asked about, and what they print of their measures.
    glances: LogBook = field(default_factory=book_of_lists)
    #: The same in more points, for pages of jobs.
    measures: LogBook = field(default_factory=book_of_curves)
    #: The operations that callers of `v1beta1` were given, for all transports.
    beta: BetaOperations = field(default_factory=BetaOperations)
