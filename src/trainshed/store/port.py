"""The store's doors: intake for requests, ledger for the controller, reader for everyone.

Contract suite: tests/contract/store. Every write is durable when its call returns. No call holds a
transaction open across anything but its own statements.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar, cast

from msgspec import Struct

from trainshed.core.capacity import QuotaKey
from trainshed.core.lifecycle.drills import Drill, DrillPlan
from trainshed.core.lifecycle.events import CancelRequested, DrillOrdered, TimelineEntry
from trainshed.core.names import Api, Collection, JobName, JobUid
from trainshed.core.notifications import Notification
from trainshed.core.pipelines.records import ModelVersion
from trainshed.core.study.records import Measurement, Trial
from trainshed.core.units import Nanos
from trainshed.core.works import Work
from trainshed.store.conditions import Condition
from trainshed.store.curves import Curves
from trainshed.store.datasets import Datasets
from trainshed.store.evaluations import Evaluations
from trainshed.store.metadata import Metadata
from trainshed.store.models import Models
from trainshed.store.notifications import Notifications
from trainshed.store.operations import Operations
from trainshed.store.records import Operation, RecordSetAside
from trainshed.store.secrets import Secrets
from trainshed.store.studies import Studies
from trainshed.store.tensorboards import Tensorboards

NO_JOB: Final = JobUid(0)
"""The uid that no work has."""


class StaleCommit(Exception):
    """The job changed since it was loaded, or another leader owns it: load again."""


class StoreInUse(Exception):
    """Another service has this data directory open. The message names its process."""


class StoreUnreadable(Exception):
    """The database is there and is none, or none of ours, or this Python cannot read it. Nothing was
    changed."""


class StoreTooNew(Exception):
    """The database was written by a newer version of the service. Nothing was changed."""


W_co = TypeVar("W_co", bound=Work, covariant=True)


class LiveJob(Struct, Generic[W_co], frozen=True):
    """A job, tuning job or pipeline that is not over, with the generation that guards its next commit and the
    intents that requests appended and no commit has consumed yet (ascending by `seq`)."""

    job: W_co
    generation: int
    intents: tuple["Intent", ...] = ()


class Intent(Struct, frozen=True):
    """What a request asked of a job, until a commit has consumed it."""

    seq: int
    event: CancelRequested | DrillOrdered


class NodeDrain(Struct, frozen=True):
    """An operator put a node under maintenance."""

    node: str
    #: Nanoseconds since the epoch.
    since: Nanos
    #: "" = none was given.
    reason: str = ""


class NewWork(Struct, frozen=True):
    """A job, tuning job or pipeline that is stored for the first time, with the first entries of its
    timeline."""

    job: Work
    timeline: tuple[TimelineEntry, ...] = ()


class Commit(Struct, frozen=True):
    """One guarded step of a work, stored in one transaction."""

    #: The new state. Its `labels` are ignored: labels belong to requests (`Intake.replace_labels`).
    job: Work
    expected_generation: int
    #: What happened in the step.
    timeline: tuple[TimelineEntry, ...] = ()
    #: All intents with this seq or a lower one are consumed.
    consumed_intents: int = 0
    #: Of the work's own study; new ones, or in place of the one of that number.
    trials: tuple[Trial, ...] = ()
    #: Added to trials, by number.
    measurements: tuple[tuple[int, Measurement], ...] = ()
    #: Works that are created with it.
    made: tuple[NewWork, ...] = ()
    #: Registered with it; None = none is.
    model: ModelVersion | None = None
    #: Put into the outbox with it.
    notifications: tuple[Notification, ...] = ()


class JobQuery(Struct, frozen=True):
    """One page of a list of works, newest first."""

    #: "" = of every project, whatever the rest says.
    project_id: str
    #: None = of both APIs.
    api: Api | None
    #: None = all.
    location: str | None
    #: The uid that the previous page ended with; 0 for the first page.
    after: int = 0
    limit: int = 100
    #: Of this one only (with the Vertex API), jobs that other works made included; None = of all collections,
    #: and only what clients made themselves.
    collection: Collection | None = None


class Matches(Struct, frozen=True):
    """Some of the works of a list that meet a condition."""

    #: With their etags, newest first; fewer than were asked for, or none, though there may be more.
    jobs: tuple[tuple[Work, str], ...]
    #: Where to go on (`JobQuery.after`): nothing older than this work was looked at. None = there is no more.
    went_to: JobUid | None


class Intake(Protocol):
    """Where requests write. Nothing is half stored: a raised error means nothing happened."""

    async def create_job(self, job: Work, timeline: Sequence[TimelineEntry]) -> None:
        """Store a new work, generation 1. Raises AlreadyExists if the name was ever used in the
        project, by a job that was deleted since included; Unavailable if only the uid is taken."""
        ...

    async def create_jobs(self, made: Sequence[NewWork]) -> None:
        """The same for several at once: all are stored, or none."""
        ...

    async def request_cancel(self, name: JobName, cancel: CancelRequested) -> JobUid:
        """Append a cancel intent. Again is fine: while one waits, the earlier one stands.
        Raises NotFound, FailedPrecondition (already over)."""
        ...

    async def order_drill(self, name: JobName, drill: Drill) -> JobUid:
        """Append a drill intent; several may wait. Raises NotFound, FailedPrecondition (already over)."""
        ...

    async def tell(self, uid: JobUid, entries: Sequence[TimelineEntry]) -> None:
        """Add to the timeline of a work in any state what somebody did to it that changes nothing of it;
        nothing if it was deleted."""
        ...

    async def tell_all(self, uids: Sequence[JobUid], entry: TimelineEntry) -> None:
        """As `tell`, the same to many works at once: all of them or none."""
        ...

    async def replace_labels(
        self, name: JobName, labels: tuple[tuple[str, str], ...], etag: str, now: Nanos
    ) -> Work:
        """Set the labels of a job in any state; `etag` "" skips the check; `now` becomes the job's `updated`.
        Returns the job as it is then. Raises NotFound, Aborted (etag differs)."""
        ...

    async def delete_job(self, name: JobName, operation: Operation) -> JobUid:
        """Remove a job that is over, with its trials, and record the finished operation, in one transaction.
        Raises NotFound, FailedPrecondition (still running; or what made it has not taken in yet how it
        ended)."""
        ...

    async def drain_node(self, drain: NodeDrain) -> None:
        """Put a node under maintenance; again is fine, the first one's `since` stays."""
        ...

    async def undrain_node(self, node: str) -> None:
        """Let a node take work again; one that is not drained is fine."""
        ...

    async def set_quota(self, key: QuotaKey, limit: float) -> None:
        """Set a quota; `capacity.UNLIMITED` for no limit."""
        ...

    async def clear_quota(self, key: QuotaKey) -> None:
        """Go back to the default; one that is not set is fine."""
        ...

    async def put_drill_plan(self, plan: DrillPlan) -> None:
        """Store a plan in place of one of the same project and name."""
        ...

    async def delete_drill_plan(self, project_id: str, name: str) -> None:
        """Raises NotFound."""
        ...


class Ledger(Protocol):
    """Where the controller, and nobody else, writes state."""

    async def acquire(self, owner: str) -> int:
        """Become the leader: returns a new epoch higher than any before; earlier epochs can no longer
        commit."""
        ...

    async def create(self, epoch: int, made: NewWork) -> None:
        """Store a new work, generation 1, that has gone on already: as `Intake.create_job` and a commit in
        one. Raises as `Intake.create_job`; StaleCommit if a newer epoch was acquired."""
        ...

    async def load(self, uid: JobUid) -> LiveJob[Work] | None:
        """The job if it is not over, with its unconsumed intents."""
        ...

    async def load_live(self) -> tuple[LiveJob[Work], ...]:
        """Every job that is not over, oldest first; cost does not depend on how many are over."""
        ...

    async def commit(self, epoch: int, commit: Commit) -> int:
        """Apply one step; returns the new generation. Raises StaleCommit, and then nothing is written: the
        generation is not the expected one, a newer epoch was acquired, the job is gone, a final state would
        be left, the step ends the job while an intent that it did not consume waits (so that an accepted
        cancel is never lost: load again, step it, commit), or the model's version is there already."""
        ...


class Reader(Protocol):
    """Read-only and cheap; sees every acknowledged write."""

    async def job(self, name: JobName) -> tuple[Work, str]:
        """The job and its etag. Raises NotFound."""
        ...

    async def job_by_uid(self, uid: JobUid) -> tuple[Work, str]:
        """The job and its etag. Raises NotFound."""
        ...

    async def job_of_output(self, project_id: str, uri: str) -> JobUid | None:
        """The job of the project in whose output directory a gs:// URI lies: that of the innermost such
        directory, and of several jobs with the same one the newest. None if there is none."""
        ...

    async def jobs(self, query: JobQuery) -> tuple[tuple[Work, str], ...]:
        """At most `limit` jobs with their etags, descending by uid, below `after` if that is not 0."""
        ...

    async def matching(self, query: JobQuery, where: Condition) -> Matches:
        """The same, of the jobs that meet a condition. One call takes the same time at most, however many
        jobs are stored."""
        ...

    async def find(self, job_id: str) -> tuple[Work, str]:
        """The newest job whose job_id (any project, any API) is this. Raises NotFound."""
        ...

    async def children(self, parent: JobUid, after: JobUid = NO_JOB) -> tuple[Work, ...]:
        """Every work that this one made, oldest first; with `after` those that are newer than this one."""
        ...

    async def timeline(self, uid: JobUid) -> tuple[TimelineEntry, ...]:
        """The job's timeline in the order in which it was written; empty if there is no such job."""
        ...

    async def set_aside(self) -> tuple[RecordSetAside, ...]:
        """Every record that could not be read: no other call gives it, and `job` and its like raise
        FailedPrecondition."""
        ...

    async def operation(self, name: str) -> Operation:
        """Raises NotFound."""
        ...

    async def operations(self, parent: str, after: str, limit: int) -> tuple[Operation, ...]:
        """Operations whose name begins with `parent` + "/operations/", ascending by name, after `after`."""
        ...

    async def drained_nodes(self) -> tuple[NodeDrain, ...]:
        """Every node under maintenance, by name."""
        ...

    async def quotas(self) -> tuple[tuple[QuotaKey, float], ...]:
        """Every quota that an operator has set, ordered by project, region and metric."""
        ...

    async def drill_plan(self, project_id: str, name: str) -> DrillPlan:
        """Raises NotFound."""
        ...

    async def drill_plans(self, project_id: str) -> tuple[DrillPlan, ...]:
        """All plans of a project, by name."""
        ...


class Store(Protocol):
    """An open store: its doors. Used from one event loop; every door raises Unavailable when the
    disk or database does not take part, and then nothing of that call is acknowledged."""

    @property
    def intake(self) -> Intake: ...

    @property
    def ledger(self) -> Ledger: ...

    @property
    def reader(self) -> Reader: ...

    @property
    def studies(self) -> Studies: ...

    @property
    def models(self) -> Models: ...

    @property
    def evaluations(self) -> Evaluations: ...

    @property
    def metadata(self) -> Metadata: ...

    @property
    def tensorboards(self) -> Tensorboards: ...

    @property
    def curves(self) -> Curves: ...

    @property
    def datasets(self) -> Datasets: ...

    @property
    def secrets(self) -> Secrets: ...

    @property
    def operations(self) -> Operations: ...

    @property
    def notifications(self) -> Notifications: ...

    async def release_memory(self) -> None:
        """Give back what it keeps in memory to be faster; for when there is nothing to do. What is stored
        stays. Raises Unavailable."""
        ...

    def when_set_aside(self, told: Callable[[RecordSetAside], object]) -> None:
        """From now on have `told` called with each record that is set aside, on any thread."""
        ...

    def close(self) -> None:
        """Finish what is queued and let go of the data directory. Blocks; twice is fine."""
        ...


_OPENERS = {
    "sqlite": "trainshed.store.sqlite.database",
    "inline": "trainshed.store.sqlite.inline",
}


def open_store(dialect: str, directory: Path) -> Store:
    """Open (and create or upgrade) the store that lives in `directory`. Blocks; call it before serving.

    "inline" is for simulations: it lives in memory and ends with its `close`. Raises StoreInUse, StoreTooNew,
    ValueError (no such dialect).
    """
    if dialect not in _OPENERS:
        known = ", ".join(sorted(_OPENERS))
        raise ValueError(f"there is no store {dialect!r}; choose one of: {known}")
    module = import_module(_OPENERS[dialect])
    opener = cast("Callable[[Path], Store]", module.open_database)
    return opener(directory)
