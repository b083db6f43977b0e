"""The durable record of a hyperparameter tuning job. Its trials are rows of their own (`core.study.trials`).

Times are nanoseconds since the epoch, 0 where the moment has not come.
"""

from dataclasses import dataclass

from trainshed.core.job.exits import JobError
from trainshed.core.job.spec import JobSpec
from trainshed.core.lifecycle.records import Outcome, Parent
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobName, JobUid
from trainshed.core.study.records import Measurement, StudyUid
from trainshed.core.study.spec import StudySpec


@dataclass(frozen=True, slots=True)
class TuningSpec:
    """A valid tuning job of either API.

    `trial`: what each trial runs, before its parameters and directories are put in. `max_failed_trials`: 0 =
    the service decides (docs/choices.md). `resumed`: the tuning jobs whose trials count as this one's past,
    oldest first (`ml` resumePreviousJobId), and `first_trial`: the number that this job begins with.
    """

    study: StudySpec
    trial: JobSpec
    max_trials: int
    parallel_trials: int
    max_failed_trials: int = 0
    resumed: tuple[StudyUid, ...] = ()
    first_trial: int = 1


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A trial that is not over. `stopping`: why it was told to stop early ("" = it was not), and `predicted`:
    what it would have measured at its end, where the stopping rule knows."""

    number: int
    job: JobUid
    stopping: str = ""
    predicted: Measurement | None = None


@dataclass(frozen=True, slots=True)
class SeenSummaries:
    """What was seen of a trial's TensorFlow summaries. `uri`: the directory that they were looked for in,
    with all below it; `tags`: of all scalars in them, in order."""

    uri: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TuningJob:
    """A tuning job. `next_trial`: the number of the trial that follows. `failed`: those of `infeasible`
    trials that count against the job. `best`: number of the best trial so far, and its value of the objective
    (0 = none). `exhausted`: the algorithm has nothing left to try. `waits_for_engine`: the library of the
    service's tuning engine is not installed, and its story says so. `outcome`: how it will end, as soon as
    that is decided."""

    uid: JobUid
    name: JobName
    display_name: str
    spec: TuningSpec
    public_json: str
    created: int
    updated: int
    labels: tuple[tuple[str, str], ...] = ()
    state: JobState = JobState.QUEUED
    started: int = 0
    ended: int = 0
    outcome: Outcome | None = None
    error: JobError | None = None
    parent: Parent | None = None
    running: tuple[RunningTrial, ...] = ()
    next_trial: int = 1
    succeeded: int = 0
    infeasible: int = 0
    failed: int = 0
    best: int = 0
    best_value: float = 0.0
    exhausted: bool = False
    waits_for_engine: bool = False

    @property
    def study(self) -> StudyUid:
        """Where its trials are stored."""
        return StudyUid(self.uid)

    @property
    def begun(self) -> int:
        """How many trials of its own it has begun so far."""
        return self.next_trial - self.spec.first_trial
