"""The store's ports: intake for requests, ledger for the controller, reader for everyone.

Contract suite: tests/contract/store. Every write is durable when its call returns. No call keeps a
transaction open beyond its own statements.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Struct

from trainshed.core.capacity import QuotaKey
from trainshed.core.lifecycle.drills import Drill
from trainshed.core.lifecycle.events import CancelRequested, DrillOrdered, TimelineEntry
from trainshed.core.names import Api, Collection, JobName, JobUid
from trainshed.core.notifications import Notification
from trainshed.core.pipelines.records import ModelVersion
from trainshed.core.study.records import Measurement, Trial
from trainshed.core.units import Nanos
from trainshed.core.usage import MachineTime, Use
from trainshed.core.works import Work
from trainshed.store.audit import Access
from trainshed.store.conditions import Condition
from trainshed.store.metadata import Metadata
from trainshed.store.records import Operation, RecordSetAside
from trainshed.store.resources import (
    Curves,
    Datasets,
    Evaluations,
    Models,
    Notifications,
    Operations,
    Secrets,
    Tensorboards,
)
from trainshed.store.studies import Studies

NO_JOB: Final = JobUid(0)
"""The uid that no work has."""


class StaleCommit(Exception):
    """The job changed since it was loaded, or another service leads: load the job again."""


class StoreInUse(Exception):
    """Another service has this data directory open. The message names its process."""


class StoreUnreadable(Exception):
    """The file is no database, or not one of this service, or this Python cannot read it. Nothing was
    changed."""


class StoreOfOtherVersion(StoreUnreadable):
    """The database was written by a version of the service that this one cannot follow. The message says what
    to do."""


W_co = TypeVar("W_co", bound=Work, covariant=True)


class LiveJob(Struct, Generic[W_co], frozen=True):
    """A job, tuning job or pipeline that is not over, with the generation that guards its next commit and the
    intents that no commit has consumed yet (ascending by `seq`)."""

    job: W_co
    generation: int
    intents: tuple["Intent", ...] = ()


class Intent(Struct, frozen=True):
    """A request's demand on a job, until a commit has consumed it."""

    seq: int
    event: CancelRequested | DrillOrdered


class NodeDrain(Struct, frozen=True):
    """An operator's order to put a node under maintenance."""

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
    #: Trials of the work's own study, each new or replacing the one of its number.
    trials: tuple[Trial, ...] = ()
    #: Measurements that are added to trials, by trial number.
    measurements: tuple[tuple[int, Measurement], ...] = ()
    #: Works that are created in the same transaction.
    made: tuple[NewWork, ...] = ()
    #: The version that is registered in the same transaction; None = none.
    model: ModelVersion | None = None
    #: Notifications that are put into the outbox in the same transaction.
    notifications: tuple[Notification, ...] = ()
    #: What the job has given back in the step. It is kept for 400 days, whatever becomes of the job.
    uses: tuple[Use, ...] = ()


class JobQuery(Struct, frozen=True):
    """One page of a list of works, newest first."""

    #: "" = all projects, whatever the other fields say.
    project_id: str
    #: None = both APIs.
    api: Api | None
    #: None = all locations.
    location: str | None
    #: The uid of the last work of the previous page; 0 for the first page.
    after: int = 0
    limit: int = 100
    #: One collection of the Vertex API, including jobs that other works made; None = all collections, without
    #: those jobs.
    collection: Collection | None = None


class Matches(Struct, frozen=True):
    """Some of the works of a list that meet a condition."""

    #: Works with their etags, newest first; there may be more even if these are fewer than the limit, or
    #: none.
    jobs: tuple[tuple[Work, str], ...]
    #: Where to go on (`JobQuery.after`): works older than this one were not looked at yet. None = there are
    #: no more.
    went_to: JobUid | None


class Intake(Protocol):
    """The port through which requests write. Writes are complete or not done: a raised error means that
    nothing happened."""

    async def create_job(self, job: Work, timeline: Sequence[TimelineEntry]) -> None:
        """Store a new work, with generation 1. Raises AlreadyExists if the name was ever used in the project,
        even by a job that was deleted; Unavailable if only the uid is taken."""
        ...

    async def create_jobs(self, made: Sequence[NewWork]) -> None:
        """Store several new works at once, all or none. Raises as `create_job`."""
        ...

    async def request_cancel(self, name: JobName, cancel: CancelRequested) -> JobUid:
        """Append a cancel intent, unless one waits already. Raises NotFound, FailedPrecondition (already
        over)."""
        ...

    async def order_drill(self, name: JobName, drill: Drill) -> JobUid:
        """Append a drill intent; several may wait. Raises NotFound, FailedPrecondition (already over)."""
        ...

    async def tell(self, uid: JobUid, entries: Sequence[TimelineEntry]) -> None:
        """Add entries about actions that do not change a work to its timeline, in any state of the work; does
        nothing if it was deleted."""
        ...

    async def tell_all(self, uids: Sequence[JobUid], entry: TimelineEntry) -> None:
        """Add the same entry to the timelines of many works, all or none, as `tell`."""
        ...

    async def replace_labels(
        self, name: JobName, labels: tuple[tuple[str, str], ...], etag: str, now: Nanos
    ) -> Work:
        """Set the labels of a job in any state; `etag` "" skips the check; `now` becomes the job's `updated`.
        Returns the job with its new labels. Raises NotFound, Aborted (etag differs)."""
        ...

    async def delete_job(self, name: JobName, operation: Operation) -> JobUid:
        """Remove a job that is over, with its trials, and store the finished operation, in one transaction.
        Raises NotFound, FailedPrecondition (it is still running, or its parent has not yet processed its
        end)."""
        ...

    async def drain_node(self, drain: NodeDrain) -> None:
        """Put a node under maintenance. If it is already, its `since` stays, and a reason replaces the former
        one."""
        ...

    async def undrain_node(self, node: str) -> None:
        """Let a node take work again. Does nothing if it is not drained."""
        ...

    async def set_quota(self, key: QuotaKey, limit: float) -> None:
        """Set a quota."""
        ...

    async def clear_quota(self, key: QuotaKey) -> None:
        """Go back to a quota's default. Does nothing if it is not set."""
        ...


class Ledger(Protocol):
    """The port through which the controller, and nothing else, writes state."""

    async def acquire(self, owner: str) -> int:
        """Become the leader. Returns a new epoch, higher than any before; earlier epochs cannot commit any
        more."""
        ...

    async def create(self, epoch: int, made: NewWork) -> None:
        """Store a new work, with generation 1, that has made its first step already: `Intake.create_job` and
        a commit in one. Raises as `Intake.create_job`, and StaleCommit if a newer epoch was acquired."""
        ...

    async def load(self, uid: JobUid) -> LiveJob[Work] | None:
        """Return the job with its unconsumed intents; None if it is over or does not exist."""
        ...

    async def load_live(self) -> tuple[LiveJob[Work], ...]:
        """Return every job that is not over, oldest first. The cost does not depend on how many are over."""
        ...

    async def commit(self, epoch: int, commit: Commit) -> int:
        """Apply one step, and return the new generation. Raises StaleCommit, and then nothing is written, if
        the generation is not the expected one, a newer epoch was acquired, the job was deleted, the step
        would leave a final state, the step ends the job while an intent that it did not consume waits (so
        that an accepted cancel is never lost: load again, step it, commit), or the model's version exists
        already."""
        ...


class Reader(Protocol):
    """Read-only and cheap; sees every acknowledged write."""

    async def job(self, name: JobName) -> tuple[Work, str]:
        """Return the job and its etag. Raises NotFound."""
        ...

    async def job_by_uid(self, uid: JobUid) -> tuple[Work, str]:
        """Return the job and its etag. Raises NotFound."""
        ...

    async def job_of_output(self, project_id: str, uri: str) -> JobUid | None:
        """Return the project's job in whose output directory a gs:// URI lies: that of the innermost such
        directory, and of several jobs with the same directory the newest. None if there is none."""
        ...

    async def jobs(self, query: JobQuery) -> tuple[tuple[Work, str], ...]:
        """Return at most `limit` jobs with their etags, descending by uid, below `after` if that is not 0."""
        ...

    async def matching(self, query: JobQuery, where: Condition) -> Matches:
        """Return jobs, as `jobs`, that meet a condition. The time of one call is limited, however many jobs
        are stored."""
        ...

    async def find(self, job_id: str, projects: Sequence[str] = ()) -> tuple[Work, str]:
        """Return the newest job with this job_id in these projects (none are given: in any) and any API, and
        its etag. Raises NotFound."""
        ...

    async def counts(self, project_id: str, states: Sequence[str], most: int) -> Mapping[str, int]:
        """Return how many works that clients made are in these states, of each at most `most`; `project_id`
        "": in all projects."""
        ...

    async def children(self, parent: JobUid, after: JobUid = NO_JOB) -> tuple[Work, ...]:
        """Return the works that a work made, oldest first; with `after` only those that are newer than that
        one."""
        ...

    async def timeline(self, uid: JobUid) -> tuple[TimelineEntry, ...]:
        """Return the job's timeline in the order in which it was written; empty if there is no such job."""
        ...

    async def set_aside(self) -> tuple[RecordSetAside, ...]:
        """Return every record that could not be read. No other call returns them, and `job` and similar calls
        raise FailedPrecondition."""
        ...

    async def operation(self, name: str) -> Operation:
        """Raises NotFound."""
        ...

    async def operations(self, parent: str, after: str, limit: int) -> tuple[Operation, ...]:
        """Return operations whose name begins with `parent` + "/operations/", ascending by name, after
        `after`."""
        ...

    async def drained_nodes(self) -> tuple[NodeDrain, ...]:
        """Return all nodes under maintenance, by name."""
        ...

    async def quotas(self) -> tuple[tuple[QuotaKey, float], ...]:
        """Return all quotas that an operator has set, ordered by project, region, metric and person."""
        ...

    async def machine_time(
        self, project_id: str | None, since: Nanos, until: Nanos
    ) -> tuple[MachineTime, ...]:
        """Return what attempts that have given their places back used between two moments, summed up where
        all but the job is the same. `project_id` None: in all projects."""
        ...

    async def past_use(self, since: Nanos, stretch: Nanos) -> tuple[tuple[MachineTime, Nanos], ...]:
        """Return what projects gave back since a moment, each with the beginning of the stretch of time in
        which they did, of this length."""
        ...


class Store(Protocol):
    """An open store, as its ports. Used from one event loop. The methods of all ports raise Unavailable when
    the disk or the database fails, and then nothing of that call is acknowledged."""

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
    def access(self) -> Access: ...

    @property
    def operations(self) -> Operations: ...

    @property
    def notifications(self) -> Notifications: ...

    async def watch(self) -> None:
        """Notice at once that somebody removes or replaces the store's files. All that was acknowledged is
        then saved, and until they are back each write raises Unavailable, which says what to do. Runs until
        it is cancelled; without it, the next write notices. Returns where nothing can be watched."""
        ...

    def when_set_aside(self, listener: Callable[[RecordSetAside], object]) -> None:
        """From now on call `listener` with each record that is set aside, on any thread."""
        ...

    def close(self) -> None:
        """Finish queued writes and release the data directory. Blocks; does nothing the second time."""
        ...
