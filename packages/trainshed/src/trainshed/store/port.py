"""The inputs, results and errors of the store as values, and the conditions that narrow a list of
works before any record is read: they compare columns besides the records (ADR 3).
`sqlite.database.Store` has the calls."""

import enum
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
"""The key of the responsible user's address among the labels; no label has this key."""


class Column(enum.Enum):
    """A column that is compared as a whole."""

    #: The value of a `JobState`.
    STATE = enum.auto()
    DISPLAY_NAME = enum.auto()
    JOB_ID = enum.auto()


class Equal(Struct, frozen=True):
    """The column holds exactly this text."""

    column: Column
    value: str


class Contains(Struct, frozen=True):
    """The display name contains this text; case matters."""

    part: str


class Labelled(Struct, frozen=True):
    """There is a label with this key."""

    key: str
    #: None = with any value.
    value: str | None = None


class Created(Struct, frozen=True):
    """The work was created in a span of time, both ends included; nanoseconds since the epoch."""

    first: int
    last: int


class Every(Struct, frozen=True):
    """All conditions hold; without conditions: always true."""

    conditions: tuple["Condition", ...]


class Either(Struct, frozen=True):
    """One of the conditions holds; without conditions: never true."""

    conditions: tuple["Condition", ...]


Condition = Equal | Contains | Labelled | Created | Every | Either


ORPHANS: Final = JobUid(-1)
"""Stands for the parent of works whose parent was deleted."""


class StaleCommit(Exception):
    """The job changed since it was loaded, or another service leads: load the job again."""


class StoreInUse(Exception):
    """Another service has this data directory open. The message names its process."""


class StoreUnreadable(Exception):
    """The file is no database, or not one of this service, or this Python cannot read it. Nothing was
    changed."""


class StoreOfOtherVersion(StoreUnreadable):
    """A version of the service that this one cannot follow has written the database. The message
    contains the next step."""


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
    #: None = it cannot be read, and is consumed without an effect.
    event: CancelRequested | DrillOrdered | None


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
    #: The events of the step.
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
    #: The use that the job ended in the step. It is kept for 400 days, even if the job is deleted.
    uses: tuple[Use, ...] = ()


class JobQuery(Struct, frozen=True):
    """One page of a list of works, newest first."""

    #: None = all projects, whatever the other fields say.
    project_id: str | None
    #: None = both APIs.
    api: Api | None
    #: For a collection only, whose list belongs to one location.
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
    #: Where the next page starts (`JobQuery.after`): older works were not checked yet. None =
    #: there are no more.
    went_to: JobUid | None
