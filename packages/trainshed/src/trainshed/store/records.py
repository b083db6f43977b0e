"""Records of the store itself: long-running operations, versions of secrets, notifications that wait."""

import enum

from msgspec import Struct

from trainshed.core.datasets.plans import Export
from trainshed.core.job import JobError
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import JobUid
from trainshed.core.notifications import Notification
from trainshed.core.study.records import StudyUid
from trainshed.core.units import Nanos


class OperationKind(enum.StrEnum):
    """The kind of a long-running operation."""

    #: A resource was deleted; done when the request is answered.
    DELETE = "delete"
    #: A resource was created, which is the response; done when the request is answered.
    CREATE = "create"
    #: A resource was changed, which is the response; done when the request is answered.
    UPDATE = "update"
    #: A persistent resource restarts, which is the response.
    REBOOT = "reboot"
    #: Files were added to a dataset; done when the request is answered.
    IMPORT = "import"
    #: Files of a dataset or of a model are written, beside requests.
    EXPORT = "export"
    #: Trials of a study are suggested.
    SUGGEST = "suggest"
    #: It is decided whether a trial of a study should stop.
    CHECK_STOPPING = "check_stopping"


class Operation(Struct, frozen=True):
    """A long-running operation of one kind; fields of other kinds have their defaults."""

    #: Its name: below a location, or below a study (SUGGEST) or a trial (CHECK_STOPPING).
    name: str
    kind: OperationKind
    #: The name of the resource that it is about.
    target: str
    #: Nanoseconds since the epoch, as is `updated`.
    created: Nanos
    updated: Nanos
    state: OperationState = OperationState.SUCCEEDED
    #: The study of a SUGGEST or CHECK_STOPPING.
    study: StudyUid = StudyUid(0)
    #: SUGGEST: the client that asks for `count` trials of `study`.
    client: str = ""
    count: int = 0
    #: CHECK_STOPPING: the number of the trial that is checked.
    trial: int = 0
    #: SUGGEST: the numbers of the trials that the client was given.
    trials: tuple[int, ...] = ()
    #: CHECK_STOPPING: the answer.
    should_stop: bool = False
    #: CREATE, UPDATE: the resource in public JSON; IMPORT, EXPORT: the response.
    response: str = ""
    #: The full name of the response's message type.
    response_type: str = ""
    error: JobError | None = None
    #: EXPORT: what is written.
    export: Export | None = None

    @property
    def subject(self) -> JobUid:
        """The number under which its end is published: that of its study, or else its own."""
        return JobUid(self.study or int(self.name.rpartition("/")[2]))


class Outgoing(Struct, frozen=True):
    """A notification that is not delivered yet."""

    id: int
    notification: Notification
    #: The earliest time of the next try; ns since the epoch.
    due: Nanos
    #: How often it was tried without success.
    tries: int = 0


class SecretVersion(Struct, frozen=True):
    """The public facts of one version. `created`: ns since the epoch."""

    name: str
    version: int
    created: Nanos


class Sealed(Struct, frozen=True):
    """A sealed value with its version number."""

    version: int
    content: bytes
