"""Records of the store's own: long-running operations, and rows that were set aside."""

import enum
from dataclasses import dataclass

from trainshed.core.job.exits import JobError
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.study.records import StudyUid


class OperationKind(enum.StrEnum):
    """DELETE: of any resource, done when it is answered. SUGGEST, CHECK_STOPPING: of a study. CREATE, UPDATE:
    of a resource that is done when it is answered, and which the response shows."""

    DELETE = "delete"
    CREATE = "create"
    UPDATE = "update"
    SUGGEST = "suggest"
    CHECK_STOPPING = "check_stopping"


@dataclass(frozen=True, slots=True)
class Operation:
    """`name`: below a location, or below a study (SUGGEST) or a trial (CHECK_STOPPING). `target`: the
    resource's name.

    SUGGEST: `client` asks for `count` trials of `study`, and `trials` are the numbers it was given.
    CHECK_STOPPING: whether `trial` `should_stop`. CREATE, UPDATE: `response` is the resource in public JSON
    and `response_type` its message.
    """

    name: str
    kind: OperationKind
    target: str
    created: int
    updated: int
    state: OperationState = OperationState.SUCCEEDED
    study: StudyUid = StudyUid(0)
    client: str = ""
    count: int = 0
    trial: int = 0
    trials: tuple[int, ...] = ()
    should_stop: bool = False
    response: str = ""
    response_type: str = ""
    error: JobError | None = None


@dataclass(frozen=True, slots=True)
class RecordSetAside:
    """`source`: the table that it was in, `key`: its key there, columns joined by `/`; `label`: what people
    call it, "" = the key will do; `cause`: why it cannot be read; `at`: when it was set aside (ns)."""

    source: str
    key: str
    label: str
    cause: str
    at: int

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
}
ADVICE = (
    "Another version of the service, or a damaged disk, may have written it. It lies in the table "
    "set_aside of trainshed.db; a backup of before can be restored (`trainshed restore`), and nothing else "
    "depends on it."
)
"""What to do about a record that was set aside."""
