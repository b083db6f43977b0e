"""Records of the store's own: long-running operations, and rows that were set aside."""

import enum

from msgspec import Struct

from trainshed.core.datasets.plans import DataExport
from trainshed.core.job.exits import JobError
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.pipelines.records import ModelExport
from trainshed.core.study.records import StudyUid
from trainshed.core.units import Nanos


class OperationKind(enum.StrEnum):
    """DELETE: of any resource, done when it is answered. SUGGEST, CHECK_STOPPING: of a study. CREATE, UPDATE:
    of a resource that is done when it is answered, and which the response shows. EXPORT: of a version of a
    model, copied beside requests. IMPORT: of files into a dataset, done at once.
    EXPORT_DATA: of a dataset into files, beside requests."""

    DELETE = "delete"
    CREATE = "create"
    UPDATE = "update"
    IMPORT = "import"
    EXPORT_DATA = "export_data"
    SUGGEST = "suggest"
    CHECK_STOPPING = "check_stopping"
    EXPORT = "export"


class Operation(Struct, frozen=True):
    """A long-running operation of one kind; fields of other kinds have their defaults."""

    #: Below a location, or below a study (SUGGEST) or a trial (CHECK_STOPPING).
    name: str
    kind: OperationKind
    #: The resource's name.
    target: str
    #: Nanoseconds since the epoch, as is `updated`.
    created: Nanos
    updated: Nanos
    state: OperationState = OperationState.SUCCEEDED
    study: StudyUid = StudyUid(0)
    #: SUGGEST: who asks for `count` trials of `study`.
    client: str = ""
    count: int = 0
    #: CHECK_STOPPING: the number of the trial that is asked about.
    trial: int = 0
    #: SUGGEST: the numbers that the client was given.
    trials: tuple[int, ...] = ()
    #: CHECK_STOPPING: the answer.
    should_stop: bool = False
    #: CREATE, UPDATE: the resource in public JSON; IMPORT, EXPORT_DATA: the answer.
    response: str = ""
    #: Its message.
    response_type: str = ""
    error: JobError | None = None
    #: EXPORT: what is copied where.
    export: ModelExport | None = None

    #: EXPORT_DATA: what is written.
    data: DataExport | None = None

    @property
    def subject(self) -> int:
        """Whose notices tell of its end: the study's, or, where it is of none, its own number (0 = it has
        none)."""
        number = self.name.rpartition("/")[2]
        return self.study or (int(number) if number.isdecimal() else 0)


class RecordSetAside(Struct, frozen=True):
    """A record that could not be read and was put away."""

    #: The table that it was in.
    source: str
    #: Its key there, columns joined by `/`.
    key: str
    #: What people call it; "" = the key will do.
    label: str
    #: Why it cannot be read.
    cause: str
    #: When it was set aside, nanoseconds since the epoch.
    at: Nanos

    def __str__(self) -> str:
        called = f" ({self.label})" if self.label else ""
        return f"{_NAMES.get(self.source, self.source)} {self.key}{called}: {self.cause}"


_NAMES = {
    "jobs": "job",
    "timeline": "timeline entry",
    "intents": "cancel or drill",
    "operations": "operation",
    "drill_plans": "drill plan",
    "studies": "study",
    "trials": "trial",
    "measurements": "measurement",
    "model_versions": "model version",
    "persistent_resources": "persistent resource",
    "datasets": "dataset",
}
ADVICE = (
    "Another version of the service, or a damaged disk, may have written it. It lies in the table "
    "set_aside of trainshed.db; a backup of before can be restored (`trainshed restore`), and nothing else "
    "depends on it."
)
"""What to do about a record that was set aside."""
