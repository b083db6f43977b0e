"""The stored records of studies and their trials (spec/tuning#studies).

Times are nanoseconds since the epoch. 0 means that the event has not happened.
"""

import enum
from typing import Final, NewType

from msgspec import Struct

from trainshed.core.names import JobUid, StudyName
from trainshed.core.study.spec import StudySpec, Value
from trainshed.core.units import Nanos

MAX_TRIALS: Final = 1000
"""Maximum number of trials of a study."""
StudyUid = NewType("StudyUid", int)
"""Identity of a study. A tuning job's study has the uid of the job."""


class TrialState(enum.StrEnum):
    """States of a trial."""

    #: The trial is proposed, but no client evaluates it yet.
    REQUESTED = "REQUESTED"
    #: A client evaluates the trial.
    ACTIVE = "ACTIVE"
    #: The trial received a request to stop, but may still report measurements.
    STOPPING = "STOPPING"
    #: The trial has a final measurement.
    SUCCEEDED = "SUCCEEDED"
    #: The trial ended without a final measurement.
    INFEASIBLE = "INFEASIBLE"

    @property
    def is_over(self) -> bool:
        return self in (TrialState.SUCCEEDED, TrialState.INFEASIBLE)


class Measurement(Struct, frozen=True):
    """The measurement of a trial at one moment. All values are finite."""

    #: Values by metric id.
    metrics: tuple[tuple[str, float], ...]
    #: Number of steps of the trial at the measurement.
    step: int = 0
    #: Running time of the trial at the measurement, in nanoseconds.
    elapsed: int = 0

    def value(self, metric: str) -> float | None:
        """Return the value of a metric, or None if it was not measured."""
        return next((value for name, value in self.metrics if name == metric), None)


Parameters = tuple[tuple[str, Value], ...]
"""The active parameters of a trial as (id, value), in the order of the tree."""


class Trial(Struct, frozen=True):
    """One trial of a study. Its measurements are stored separately.

    Times are in nanoseconds since the epoch. 0 means that the event has not happened.
    """

    study: StudyUid
    #: Number of the trial within its study, from 1. As text, it is the public id.
    number: int
    state: TrialState
    parameters: Parameters
    created: Nanos
    started: Nanos = 0
    ended: Nanos = 0
    #: The client that evaluates the trial, or "" for no particular client.
    client: str = ""
    final: Measurement | None = None
    infeasible_reason: str = ""
    #: The custom job that evaluates the trial, or 0.
    job: JobUid = JobUid(0)
    #: Whether an early stopping rule or a StopTrial call stopped the trial.
    stopped_early: bool = False


class StudyState(enum.StrEnum):
    """States of a study."""

    #: The study may suggest trials.
    ACTIVE = "ACTIVE"
    #: The study was paused.
    INACTIVE = "INACTIVE"
    #: The study has reached one of its limits, or has no points left to try.
    COMPLETED = "COMPLETED"


class Study(Struct, frozen=True):
    """A study of a client of the study API, or of a tuning job."""

    uid: StudyUid
    name: StudyName
    #: Display name, unique in its location.
    display_name: str
    spec: StudySpec
    #: The study of the request in public JSON.
    public_json: str
    #: Creation of the study, in nanoseconds since the epoch.
    created: Nanos
    state: StudyState = StudyState.ACTIVE
    inactive_reason: str = ""
