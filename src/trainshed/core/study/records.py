"""The durable records of a study that a client made, and of its trials (spec/tuning#studies).

Times are nanoseconds since the epoch, 0 where the moment has not come.
"""

import enum
from dataclasses import dataclass
from typing import NewType

from trainshed.core.names import JobUid, StudyName
from trainshed.core.study.spec import StudySpec, Value

StudyUid = NewType("StudyUid", int)
"""Identity of a study; that of a tuning job's study is the job's own uid."""


class TrialState(enum.StrEnum):
    """REQUESTED: proposed, nobody evaluates it yet. ACTIVE: somebody does. STOPPING: it was told to stop and
    may still report. SUCCEEDED: it has a final measurement. INFEASIBLE: it is over and has none."""

    REQUESTED = "REQUESTED"
    ACTIVE = "ACTIVE"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    INFEASIBLE = "INFEASIBLE"

    @property
    def is_over(self) -> bool:
        return self in (TrialState.SUCCEEDED, TrialState.INFEASIBLE)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured after `step` steps and `elapsed` ns: value by metric id. Values are finite."""

    metrics: tuple[tuple[str, float], ...]
    step: int = 0
    elapsed: int = 0

    def value(self, metric: str) -> float | None:
        """None if it was not measured."""
        return next((value for name, value in self.metrics if name == metric), None)


Parameters = tuple[tuple[str, Value], ...]
"""The active parameters of a trial: value by id, in the order of the tree."""


@dataclass(frozen=True, slots=True)
class Trial:
    """`number` counts from 1 within the study; its text is the public id. Its measurements are rows of their
    own.

    `client`: who evaluates it ("" = nobody asked for it by name). `job`: the custom job that evaluates it (0
    = none). `stopped_early`: it was told to stop by an early stopping rule or a StopTrial call.
    """

    study: StudyUid
    number: int
    state: TrialState
    parameters: Parameters
    created: int
    started: int = 0
    ended: int = 0
    client: str = ""
    final: Measurement | None = None
    infeasible_reason: str = ""
    job: JobUid = JobUid(0)
    stopped_early: bool = False


class StudyState(enum.StrEnum):
    """ACTIVE: trials may be suggested. INACTIVE: it was paused. COMPLETED: it came to one of its limits, or
    nothing is left to try."""

    ACTIVE = "ACTIVE"
    INACTIVE = "INACTIVE"
    COMPLETED = "COMPLETED"


@dataclass(frozen=True, slots=True)
class Study:
    """`display_name` is unique in its location. `created`: ns. `public_json`: the study as given."""

    uid: StudyUid
    name: StudyName
    display_name: str
    spec: StudySpec
    public_json: str
    created: int
    state: StudyState = StudyState.ACTIVE
    inactive_reason: str = ""
