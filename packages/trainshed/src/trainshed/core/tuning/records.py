"""The durable record of a hyperparameter tuning job. Its trials are rows of their own (`core.study.records`).

Times are nanoseconds since the epoch; 0 = the moment has not come.
"""

from msgspec import Struct

from trainshed.core.job import JobSpec
from trainshed.core.lifecycle.records import WorkRecord
from trainshed.core.names import JobUid
from trainshed.core.study.records import StudyUid
from trainshed.core.study.spec import StudySpec


class TuningSpec(Struct, frozen=True):
    """A valid tuning job of either API."""

    study: StudySpec
    #: The job of each trial, before its parameters and directories are put in.
    trial: JobSpec
    max_trials: int
    parallel_trials: int
    #: 0 = the service decides (docs/tuning.md).
    max_failed_trials: int = 0
    #: The tuning jobs whose trials count as this one's past, oldest first (`ml` resumePreviousJobId).
    resumed: tuple[StudyUid, ...] = ()
    #: The number of this job's first trial.
    first_trial: int = 1


class RunningTrial(Struct, frozen=True):
    """A trial that is not over."""

    number: int
    job: JobUid
    #: Why it was stopped early; None = it was not.
    stopping: str | None = None


class SeenSummaries(Struct, frozen=True):
    """The observed state of a trial's TensorFlow summaries."""

    #: The directory in which they were looked for, with all below it.
    uri: str
    #: The tags of all scalars in them, in order.
    tags: tuple[str, ...]


class TuningJob(WorkRecord, frozen=True, kw_only=True):
    """A tuning job."""

    spec: TuningSpec
    running: tuple[RunningTrial, ...] = ()
    #: The number of the next trial.
    next_trial: int = 1
    succeeded: int = 0
    infeasible: int = 0
    #: Those of the `infeasible` trials that count against the job.
    failed: int = 0
    #: Number of the best trial so far; 0 = none.
    best: int = 0
    #: Its value of the objective.
    best_value: float = 0.0
    #: No further trial begins: the algorithm has nothing left to try, or the study has reached a limit of its
    #: own.
    exhausted: bool = False

    @property
    def study(self) -> StudyUid:
        """The study under which its trials are stored."""
        return StudyUid(self.uid)

    @property
    def begun(self) -> int:
        """How many trials of its own it has begun so far."""
        return self.next_trial - self.spec.first_trial
