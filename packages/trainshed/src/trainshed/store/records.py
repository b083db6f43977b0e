"""Records of the store itself: long-running operations, versions of secrets, and undelivered
notifications."""

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

    #: A resource was deleted. The operation is done when the client receives its response.
    DELETE = "delete"
    #: A resource was created, which is the operation's response. The operation is done when the client
    #: receives it.
    CREATE = "create"
    #: A resource was changed, which is the operation's response. The operation is done when the client
    #: receives it.
    UPDATE = "update"
    #: A persistent resource restarts, which is the operation's response.
    REBOOT = "reboot"
    #: Files were added to a dataset. The operation is done when the client receives it.
    IMPORT = "import"
    #: Files of a dataset or a model are written in the background.
    EXPORT = "export"
    #: An algorithm suggests trials of a study.
    SUGGEST = "suggest"
    #: The service decides whether a trial of a study should stop.
    CHECK_STOPPING = "check_stopping"


class Operation(Struct, frozen=True):
    """A long-running operation of one kind. Fields of other kinds have their defaults."""

    #: The operation's name, below a location, a study (SUGGEST) or a trial (CHECK_STOPPING).
    name: str
    kind: OperationKind
    #: The name of the operation's resource.
    target: str
    #: Time of creation in nanoseconds since the epoch. `updated` has the same unit.
    created: Nanos
    updated: Nanos
    state: OperationState = OperationState.SUCCEEDED
    #: The study of a SUGGEST or CHECK_STOPPING.
    study: StudyUid = StudyUid(0)
    #: SUGGEST: the client that requests `count` trials of `study`.
    client: str = ""
    count: int = 0
    #: CHECK_STOPPING: the number of the trial to check.
    trial: int = 0
    #: SUGGEST: the numbers of the trials that the client receives.
    trials: tuple[int, ...] = ()
    #: CHECK_STOPPING: the decision whether the trial should stop.
    should_stop: bool = False
    #: CREATE, UPDATE: the resource in public JSON. IMPORT, EXPORT: the response.
    response: str = ""
    #: The full name of the response's message type.
    response_type: str = ""
    error: JobError | None = None
    #: EXPORT: the data to write.
    export: Export | None = None

    @property
    def subject(self) -> JobUid:
        """The number under which the operation's end is published: the number of its study, or its own
        number."""
        return JobUid(self.study or int(self.name.rpartition("/")[2]))


class Outgoing(Struct, frozen=True):
    """A notification that is not delivered yet."""

    id: int
    notification: Notification
    #: The earliest time of the next delivery attempt, in ns since the epoch.
    due: Nanos
    #: Number of failed delivery attempts.
    tries: int = 0


class SecretVersion(Struct, frozen=True):
    """The public facts of one version of a secret. `created`: ns since the epoch."""

    name: str
    version: int
    created: Nanos


class Sealed(Struct, frozen=True):
    """An encrypted secret value with its version number."""

    version: int
    content: bytes
