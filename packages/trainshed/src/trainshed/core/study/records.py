"""The durable records of a study, and of its trials (spec/tuning#studies).

Times are nanoseconds since the epoch; 0 = the moment has not come.
"""

import enum
from typing import Final, NewType

from msgspec import Struct

from trainshed.core.names import JobUid, StudyName
from trainshed.core.study.spec import StudySpec, Value
from trainshed.core.units import Nanos

MAX_TRIALS: Final = 1000
"""Most trials of a study."""
StudyUid = NewType("StudyUid", int)
"""Identity of a study; a tuning job's study has the job's own uid."""


class TrialState(enum.StrEnum):
    """States of a trial."""

    #: It is proposed, and no client evaluates it yet.
    REQUESTED = "REQUESTED"
    #: Somebody evaluates it.
    ACTIVE = "ACTIVE"
    #: It received a request to stop, and may still report.
    STOPPING = "STOPPING"
    #: It has a final measurement.
    SUCCEEDED = "SUCCEEDED"
    #: It is over and has none.
    INFEASIBLE = "INFEASIBLE"

    @property
    def is_over(self) -> bool:
        return self in (TrialState.SUCCEEDED, TrialState.INFEASIBLE)


class Measurement(Struct, frozen=True):
    """The measurement of a trial at one moment. Values are finite."""

    #: Value by metric id.
    metrics: tuple[tuple[str, float], ...]
    #: The number of steps that it had made.
    step: int = 0
    #: How long it had run, in nanoseconds.
    elapsed: int = 0

    def value(self, metric: str) -> float | None:
        """Return the value of a metric; None if it was not measured."""
        return next((value for name, value in self.metrics if name == metric), None)


Parameters = tuple[tuple[str, Value], ...]
"""The active parameters of a trial: value by id, in the order of the tree."""


class Trial(Struct, frozen=True):
    """One trial of a study; its measurements are rows of their own. Moments in nanoseconds since the epoch, 0
    = not yet."""

    study: StudyUid
    #: Counts from 1 within the study; its text is the public id.
    number: int
    state: TrialState
    parameters: Parameters
    created: Nanos
    started: Nanos = 0
    ended: Nanos = 0
    #: The client that evaluates it; "" = no particular client.
    client: str = ""
    final: Measurement | None = None
    infeasible_reason: str = ""
    #: The custom job that evaluates it; 0 = none.
    job: JobUid = JobUid(0)
    #: An early stopping rule or a StopTrial call stopped it.
    stopped_early: bool = False


class StudyState(enum.StrEnum):
    """States of a study."""

    #: Trials may be suggested.
    ACTIVE = "ACTIVE"
    #: It was paused.
    INACTIVE = "INACTIVE"
    #: It has reached one of its limits, or nothing is left to try.
    COMPLETED = "COMPLETED"


class Study(Struct, frozen=True):
    """A study that clients asked for, or a tuning job's."""

    uid: StudyUid
    name: StudyName
    #: Unique in its location.
    display_name: str
    spec: StudySpec
    #: The study in public JSON, as given.
    public_json: str
    #: Nanoseconds since the epoch.
    created: Nanos
    state: StudyState = StudyState.ACTIVE
    inactive_reason: str = ""
