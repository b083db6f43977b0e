"""The record of a long-running operation: what was asked, how far it is, what came of it."""

import enum
from dataclasses import dataclass

from trainshed.core.job.exits import JobError
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.study.trials import StudyUid


class OperationKind(enum.StrEnum):
    """DELETE: of any resource, done when it is answered. SUGGEST, CHECK_STOPPING: of a study. CREATE, UPDATE: of a
    resource that is done when it is answered, and which the response shows."""

    DELETE = "delete"
    CREATE = "create"
    UPDATE = "update"
    SUGGEST = "suggest"
    CHECK_STOPPING = "check_stopping"


@dataclass(frozen=True, slots=True)
class Operation:
    """`name`: below a location, or below a study (SUGGEST) or a trial (CHECK_STOPPING). `target`: the resource's name.

    SUGGEST: `client` asks for `count` trials of `study`, and `trials` are the numbers it was given. CHECK_STOPPING: whether
    `trial` `should_stop`. CREATE, UPDATE: `response` is the resource in public JSON and `response_type` its message.
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
