"""Records that the store defines: long-running operations, versions of secrets, and undelivered
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

    #: The service deletes a resource. Except for a persistent resource, the operation is already finished
    #: when the client receives it.
    DELETE = "delete"
    #: The service creates a resource, which becomes the operation's response. Except for a persistent
    #: resource, the operation is already finished when the client receives it.
    CREATE = "create"
    #: The service changes a resource, which becomes the operation's response. Except for a persistent
    #: resource, the operation is already finished when the client receives it.
    UPDATE = "update"
    #: The service restarts a persistent resource, which becomes the operation's response.
    REBOOT = "reboot"
    #: The service adds files to a dataset. The operation is already finished when the client receives it.
    IMPORT = "import"
    #: The service writes files of a dataset or a model in the background.
    EXPORT = "export"
    #: An algorithm suggests trials of a study.
    SUGGEST = "suggest"
    #: The service decides whether a trial should stop.
    CHECK_STOPPING = "check_stopping"


class Operation(Struct, frozen=True):
    """A long-running operation of one kind. Fields that apply only to other kinds have their defaults."""

    #: The operation's name. Its parent is a location, a study (SUGGEST) or a trial (CHECK_STOPPING).
    name: str
    kind: OperationKind
    #: The name of the resource on which the operation acts.
    target: str
    #: Time of creation in nanoseconds since the epoch. `updated` has the same unit.
    created: Nanos
    updated: Nanos
    state: OperationState = OperationState.SUCCEEDED
    #: SUGGEST, CHECK_STOPPING: the study.
    study: StudyUid = StudyUid(0)
    #: SUGGEST: the client that requests `count` trials of `study`.
    client: str = ""
    count: int = 0
    #: CHECK_STOPPING: the number of the trial to check.
    trial: int = 0
    #: SUGGEST: the numbers of the trials that the client receives.
    trials: tuple[int, ...] = ()
    #: CHECK_STOPPING: whether the trial should stop.
    should_stop: bool = False
    #: CREATE, UPDATE, REBOOT: the resource in the JSON form of the public API. IMPORT, EXPORT: the response
    #: in this form.
    response: str = ""
    #: The full name of the response's message type.
    response_type: str = ""
    error: JobError | None = None
    #: EXPORT: the data to write.
    export: Export | None = None

    @property
    def subject(self) -> JobUid:
        """The number under which the end of the operation is published: the number of its study, or else the
        operation's own number."""
        return JobUid(self.study or int(self.name.rpartition("/")[2]))


class Outgoing(Struct, frozen=True):
    """A notification that has not been delivered yet."""

    id: int
    notification: Notification
    #: The earliest time of the next attempt to deliver it, in ns since the epoch.
    due: Nanos
    #: Number of failed delivery attempts.
    tries: int = 0


class SecretVersion(Struct, frozen=True):
    """The public properties of one version of a secret. `created`: ns since the epoch."""

    name: str
    version: int
    created: Nanos


class Sealed(Struct, frozen=True):
    """An encrypted secret value with its version number."""

    version: int
    content: bytes
