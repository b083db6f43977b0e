"""The inputs, results and errors of the store as values. Also the conditions that filter a list of jobs,
tuning jobs and pipelines by their columns, without reading records (ADR 3). `sqlite.database.Store` defines
the methods."""

import enum
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from msgspec import Struct

from trainshed.core.lifecycle.events import CancelRequested, DrillOrdered, TimelineEntry
from trainshed.core.names import Api, Collection, JobUid
from trainshed.core.notifications import Notification
from trainshed.core.pipelines import ModelVersion
from trainshed.core.study.records import Measurement, Trial
from trainshed.core.units import Nanos
from trainshed.core.usage import Use
from trainshed.core.works import Work

PERSON: Final = "@person"
"""Key of the responsible user's address in the table of labels. A label cannot have this key."""


class Column(enum.Enum):
    """A column that a condition can compare with a text."""

    #: The value of a `JobState`.
    STATE = enum.auto()
    DISPLAY_NAME = enum.auto()
    JOB_ID = enum.auto()


class Equal(Struct, frozen=True):
    """Condition: the column contains exactly this text."""

    column: Column
    value: str


class Contains(Struct, frozen=True):
    """Condition: the display name contains this text (case-sensitive)."""

    part: str


class HasLabel(Struct, frozen=True):
    """Condition: the job, tuning job or pipeline has a label with this key."""

    key: str
    #: The value that the label must have, or None for any value.
    value: str | None = None


class Created(Struct, frozen=True):
    """Condition: the job, tuning job or pipeline was created between these times, including both. Times are
    in nanoseconds since the epoch."""

    first: int
    last: int


class Every(Struct, frozen=True):
    """Condition: all of these conditions are true. Without conditions it is always true."""

    conditions: tuple["Condition", ...]


class Either(Struct, frozen=True):
    """Condition: one of these conditions is true. Without conditions it is never true."""

    conditions: tuple["Condition", ...]


Condition = Equal | Contains | HasLabel | Created | Every | Either


ORPHANS: Final = JobUid(-1)
"""The parent's UID in jobs whose parent, a tuning job or pipeline, was deleted."""


class StaleCommit(Exception):
    """The commit was rejected because the job has changed since it was loaded, or another controller is the
    leader. The caller must load the job again."""


class StoreInUse(Exception):
    """Another service uses this data directory. The message contains the process ID of that service."""


class StoreUnreadable(Exception):
    """The file is not a database of this service, or this Python cannot read it. Nothing was changed."""


class StoreOfOtherVersion(StoreUnreadable):
    """An incompatible version of the service has written the database. The message contains advice on the
    next step."""


W_co = TypeVar("W_co", bound=Work, covariant=True)


class LiveJob(Struct, Generic[W_co], frozen=True):
    """An unfinished job, tuning job or pipeline. It includes the generation that guards its next commit, and
    the intents that are not yet processed, in the order of `seq`."""

    job: W_co
    generation: int
    intents: tuple["Intent", ...] = ()


class Intent(Struct, frozen=True):
    """A stored request for a job, such as a cancel. It exists until a commit has processed it."""

    seq: int
    #: The requested event. None if the intent is unreadable. Such an intent is processed without an effect.
    event: CancelRequested | DrillOrdered | None


class NodeDrain(Struct, frozen=True):
    """An operator's order to put a node under maintenance."""

    node: str
    #: Time of the order in nanoseconds since the epoch.
    since: Nanos
    #: The operator's reason, or "".
    reason: str = ""


class Write(Struct, frozen=True):
    """An SQL statement that changes the tables of an addition, and its named parameters."""

    sql: str
    parameters: Mapping[str, int | float | str | bytes | None]


class NewWork(Struct, frozen=True):
    """A new job, tuning job or pipeline, and the first entries of its timeline."""

    job: Work
    timeline: tuple[TimelineEntry, ...] = ()
    #: Writes of an addition that are executed in the same transaction.
    writes: tuple[Write, ...] = ()


class Commit(Struct, frozen=True):
    """One step of a job, tuning job or pipeline, stored in one transaction if the generation matches."""

    #: The new state of the job, tuning job or pipeline. Its `labels` are ignored, because only requests
    #: change labels (`Intake.replace_labels`).
    job: Work
    expected_generation: int
    #: The timeline entries of the step.
    timeline: tuple[TimelineEntry, ...] = ()
    #: All intents up to this `seq` were processed.
    consumed_intents: int = 0
    #: New or changed trials of the tuning job's own study. A changed trial replaces the stored trial with its
    #: number.
    trials: tuple[Trial, ...] = ()
    #: Measurements that are added to trials, by trial number.
    measurements: tuple[tuple[int, Measurement], ...] = ()
    #: Jobs, tuning jobs and pipelines that are created in the same transaction.
    made: tuple[NewWork, ...] = ()
    #: The model version that is registered in the same transaction, or None.
    model: ModelVersion | None = None
    #: Notifications that are put into the outbox in the same transaction.
    notifications: tuple[Notification, ...] = ()
    #: Records of machine use that ended in this step, because the job released machines. They are kept for
    #: 400 days, even if the job is deleted.
    uses: tuple[Use, ...] = ()
    #: Writes of an addition that are executed in the same transaction.
    writes: tuple[Write, ...] = ()


class JobQuery(Struct, frozen=True):
    """One page of a list of jobs, tuning jobs and pipelines, newest first."""

    #: The project, or None for all projects. With None, the other filters are ignored.
    project_id: str | None
    #: The API, or None for all APIs.
    api: Api | None
    #: The location, if `collection` is set.
    location: str | None
    #: The uid of the last entry of the previous page, or 0 for the first page.
    after: int = 0
    limit: int = 100
    #: A collection of the Vertex API. The list then includes jobs that tuning jobs and pipelines created.
    #: None = all collections, without jobs that tuning jobs and pipelines created.
    collection: Collection | None = None


class Matches(Struct, frozen=True):
    """A page of the jobs, tuning jobs and pipelines that meet a condition."""

    #: Jobs, tuning jobs and pipelines with their etags, newest first. If this page is short or empty, later
    #: pages may still contain some.
    jobs: tuple[tuple[Work, str], ...]
    #: Start of the next page (`JobQuery.after`): older entries were not checked yet. None on the last page.
    next_after: JobUid | None
