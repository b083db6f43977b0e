"""What the handlers work with: stores, clocks and settings, handed in by the composition root."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from trainshed.access.sealing import Sealer
from trainshed.api.calls.progress import ProgressBook
from trainshed.api.calls.tickets import Links, Tickets
from trainshed.api.calls.versions import BetaOperations
from trainshed.api.calls.view_links import ViewLinks
from trainshed.core.capacity import Load, NodeStatus, Preflight, QuotaStatus, Waiting
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.resume.traffic import Access
from trainshed.core.retention import LogCollection, Retention, RetentionReport
from trainshed.core.runtime import RuntimeCatalog
from trainshed.core.study.records import StudyUid
from trainshed.core.terminals import Autopsy, TerminalRequest
from trainshed.core.units import Nanos
from trainshed.eventloop.lag import Lag
from trainshed.httpd.messages import Request, Response
from trainshed.store.curves import Curves
from trainshed.store.datasets import Datasets
from trainshed.store.evaluations import Evaluations
from trainshed.store.logs.onward import RecentTexts
from trainshed.store.logs.reader import LogReader
from trainshed.store.metadata import Metadata
from trainshed.store.models import Models
from trainshed.store.notices import Notices
from trainshed.store.notifications import Notifications
from trainshed.store.operations import Operations
from trainshed.store.points import PointFiles
from trainshed.store.port import Intake, NewWork, Reader
from trainshed.store.records import Operation
from trainshed.store.secrets import Secrets
from trainshed.store.studies import Studies
from trainshed.store.tensorboards import Tensorboards
from trainshed.summaries.places import LogDirectory
from trainshed.telemetry.meters import Meters
from trainshed.wire.trainshed_v1.settings import Setting


class CreateWorks(Protocol):
    """Stores new works and has the controller go on with them."""

    async def __call__(self, *made: NewWork) -> None:
        """All are stored, or none. Raises as `Intake.create_jobs`."""
        ...


class BucketProbe(Protocol):
    """What validation asks of the buckets. Cheap: small files at most."""

    def bucket_location(self, name: str) -> str | None:
        """Where a bucket is (`US`, `us-central1`); None if there is none of this name."""
        ...

    def is_closed(self, name: str, project: str) -> bool:
        """Whether no program of a project may read what is in a bucket that is there."""
        ...

    def is_remote(self, name: str) -> bool:
        """Whether a bucket lies elsewhere, so that programs do not see it as /gcs/NAME."""
        ...

    def has_object(self, uri: str) -> bool:
        """Whether there is an object that a gs:// URI names, in which `*` and its like stand for others. May
        block for long: to be asked in a thread."""
        ...


class CapacityView(Protocol):
    """What the controller knows about capacity (nodes, quotas, who waits and why). Cheap, never blocks."""

    def why(self, uid: JobUid) -> Waiting | None:
        """Why a job waits; None if it does not."""
        ...

    def position(self, uid: JobUid) -> int:
        """Its place among those that wait, 1 = next; 0 = it does not wait."""
        ...

    async def preflight(self, job: Job) -> Preflight:
        """Whether a job like this one, which is not stored, would be admitted now. Raises Unavailable."""
        ...

    def nodes(self) -> tuple[NodeStatus, ...]: ...

    def quotas(self, project_id: str, region: str) -> tuple[QuotaStatus, ...]:
        """Every quota of the project in the region that has a limit or is used."""
        ...

    def load(self) -> Load:
        """What there is to do, in all projects."""
        ...

    async def readmit(self, node: str) -> None:
        """Let a node that was found unfit take work again. Raises Unavailable."""
        ...

    async def capacity_changed(self) -> None:
        """Drained nodes or quotas were changed in the store."""
        ...


class AccessHistory(Protocol):
    """What the programs of jobs did with objects. Blocks on the disk: to be asked in a thread."""

    def accesses(self, prefixes: tuple[str, ...], since: Nanos) -> tuple[tuple[Access, ...], int]:
        """Reads and finished writes of objects whose gs:// URI begins with a prefix, which ended at `since`
        (ns) or later, in that order; and from when on all there were are among them. Raises OSError."""
        ...

    def last_written(self, uri: str) -> Nanos | None:
        """When something below the URI was last written in any way, 0 = there is nothing, None = it cannot be
        known."""
        ...


class LogCollector(Protocol):
    """Deletes logs of jobs that are over."""

    async def collect(
        self, retention: Retention, most: int, *, dry_run: bool = False
    ) -> LogCollection:
        """As `controller.retention.RetentionTimer.collect`."""
        ...


class Terminal(Protocol):
    """A shell in a replica, as `engines.terminals.Terminal` says."""

    @property
    def status(self) -> int | None: ...

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    async def end_input(self) -> None: ...

    def resize(self, rows: int, columns: int) -> None: ...

    def close(self) -> None: ...


class Shells(Protocol):
    """Where shells are opened, and what failed replicas left. Methods that raise, raise FailedPrecondition
    (the message says why not) or Unavailable."""

    tickets: Tickets
    links: Links
    #: Whether the operator wants shells at all.
    allowed: bool
    #: Seconds without a byte after which a shell is hung up; 0 = never.
    idle: float

    async def open(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        wish: TerminalRequest,
    ) -> Terminal: ...

    def autopsies(self, job_uid: JobUid) -> tuple[Autopsy, ...]:
        """Never blocks."""
        ...

    async def open_autopsy(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, wish: TerminalRequest
    ) -> Terminal: ...

    def autopsy_files(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId
    ) -> AsyncGenerator[bytes]:
        """A tar archive."""
        ...

    async def delete_autopsy(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> bool:
        """Whether there was one."""
        ...


class Exports(Protocol):
    """Where exports, of models or of datasets, are carried out beside requests."""

    def begin(self, operation: Operation) -> None:
        """Carry out an operation that is stored; its end is a notice of its subject."""
        ...

    def stop(self, name: str) -> None:
        """Write nothing more for an operation that was cancelled; nothing if it is no such export."""
        ...


class Viewers(Protocol):
    """TensorBoards that show what jobs wrote, each a process of its own. `name`: of a view; `prefix`: the
    path at which browsers find it. Methods that raise, raise FailedPrecondition (the message says why not,
    and what to do) or Unavailable."""

    async def has_files(self, directories: Sequence[LogDirectory]) -> bool:
        """Whether there is anything to look at in one of them."""
        ...

    async def open(
        self,
        name: str,
        prefix: str,
        directories: Sequence[LogDirectory],
        say: Callable[[str], None],
    ) -> None:
        """Have it serve, installed and started if need be. `say`: takes lines of what is done."""
        ...

    async def forward(
        self,
        name: str,
        prefix: str,
        directories: Sequence[LogDirectory],
        request: Request,
        more: list[tuple[bytes, bytes]],
    ) -> Response:
        """Its answer to a request, with headers of ours; started again if it was ended. Raises
        BodyTooLarge."""
        ...

    def end(self, wanted: Callable[[str], bool]) -> None:
        """End those whose names are wanted; nobody waits for that."""
        ...


class Views(Struct, frozen=True):
    """Who may look at what jobs wrote, and what shows it."""

    links: ViewLinks
    viewers: Viewers


class ProgramLogs(Protocol):
    """The logs that programs write."""

    async def write(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, lines: Sequence[str]
    ) -> None:
        """Add lines to the log of a live replica, as if its program had printed them. Raises Unavailable."""
        ...


class ApiSettings(Struct, frozen=True):
    """What the answers say of this installation."""

    #: The service's own.
    version: str = ""
    #: Stands for the service where an answer names one.
    service_account: str = "trainshed@localhost"
    #: What a client takes that was told nothing else, as are `region` and `bucket`; "" = none.
    project: str = ""
    region: str = ""
    bucket: str = ""
    #: Trials that a study may have; 0 = any number.
    max_study_trials: int = 1000
    #: Reducers speak TLS, whether or not a job asks for it.
    reduction_tls: bool = False
    #: Targets of notifications that jobs may name.
    notify: tuple[str, ...] = ()
    #: Nanoseconds after a job's end before its error is told.
    error_delay: int = 0
    #: The address of pages of jobs, where errors lead for more; "" = to the page that the public text names.
    pages: str = ""
    #: What an operator has set, and what holds where he has not; without secrets.
    configured: tuple[Setting, ...] = ()


def no_retention() -> RetentionReport | None:
    """Nothing is ever deleted."""
    return None


def no_collector() -> LogCollector | None:
    """Logs are not deleted at an order."""
    return None


class Services(Struct, frozen=True):
    """Everything a handler may use."""

    intake: Intake
    reader: Reader
    studies: Studies
    models: Models
    evaluations: Evaluations
    metadata: Metadata
    tensorboards: Tensorboards
    datasets: Datasets
    points: PointFiles
    curves: Curves
    secrets: Secrets
    sealer: Sealer
    logs: LogReader
    notices: Notices
    runtimes: RuntimeCatalog
    buckets: BucketProbe
    #: Nanoseconds since the epoch.
    now: Callable[[], int]
    #: A fresh identity, ascending with time.
    new_uid: Callable[[], JobUid]
    #: Tells the controller that a job has something to do.
    wake: Callable[[JobUid], None]
    create: CreateWorks
    #: Tells the controller that an operation of a study waits; its end is a notice of `JobUid(study)`.
    suggest: Callable[[StudyUid], None]
    operations: Operations
    exports: Exports
    capacity: CapacityView
    settings: ApiSettings = ApiSettings()
    #: None: reports say that accesses are not known.
    history: AccessHistory | None = None
    #: Set when the server shuts down, so that streams end and no more jobs are taken.
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    #: None: none are opened.
    shells: Shells | None = None
    #: None: none are started.
    views: Views | None = None
    #: None: programs write by their pipes alone.
    program_logs: ProgramLogs | None = None
    #: What the engine can keep apart and limit here.
    promises: Callable[[], Mapping[str, object]] = dict[str, object]
    #: How late the event loop is.
    lag: Callable[[], Lag] = Lag
    #: When the service began, in ns since the epoch; 0 = not known.
    started: Nanos = 0
    #: What is to be sent; None = nobody is ever told.
    outbox: Notifications | None = None
    #: What the retention does; None = nothing is ever deleted.
    retention: Callable[[], RetentionReport | None] = no_retention
    #: What deletes logs at an order; asked for late, since it is built of these services. None: nothing does.
    collector: Callable[[], LogCollector | None] = no_collector
    #: What is counted of requests and jobs.
    meters: Meters = field(default_factory=Meters)
    #: How far programs are, as far as somebody has looked.
    progress: ProgressBook = field(default_factory=ProgressBook)
    #: Lines of logs that were just read, for others who follow the same ones.
    recent_texts: RecentTexts = field(default_factory=RecentTexts)
    #: What all transports know of the operations of `v1beta1`.
    beta: BetaOperations = field(default_factory=BetaOperations)
