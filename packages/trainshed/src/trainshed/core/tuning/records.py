"""The stored record of a hyperparameter tuning job. Its trials are stored separately (`core.study.records`).

Times are nanoseconds since the epoch. 0 means that the event has not happened.
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
    #: The job of each trial, before its parameters and directories are added.
    trial: JobSpec
    max_trials: int
    parallel_trials: int
    #: Maximum number of failed trials. 0: the service decides (docs/tuning.md).
    max_failed_trials: int = 0
    #: Earlier tuning jobs whose trials the algorithm also uses, oldest first (`ml` resumePreviousJobId).
    resumed: tuple[StudyUid, ...] = ()
    #: The number of this job's first trial.
    first_trial: int = 1


class RunningTrial(Struct, frozen=True):
    """A trial that has not ended."""

    number: int
    job: JobUid
    #: Why the trial was stopped early, or None if it was not.
    stopping: str | None = None


class SeenSummaries(Struct, frozen=True):
    """The observed state of a trial's TensorFlow summaries."""

    #: The directory that was searched for summaries, including its subdirectories.
    uri: str
    #: The tags of all scalars in the summaries, in order.
    tags: tuple[str, ...]


class TuningJob(WorkRecord, frozen=True, kw_only=True):
    """A tuning job in its stored form, with its running trials and the best result."""

    spec: TuningSpec
    running: tuple[RunningTrial, ...] = ()
    #: The number of the next trial.
    next_trial: int = 1
    succeeded: int = 0
    infeasible: int = 0
    #: Number of the `infeasible` trials that count as failures of the job.
    failed: int = 0
    #: Number of the best trial so far, or 0.
    best: int = 0
    #: The objective value of the best trial.
    best_value: float = 0.0
    #: Whether no more trials start, because the algorithm has no points left or the study has reached one of
    #: its limits.
    exhausted: bool = False

    @property
    def study(self) -> StudyUid:
        """The study that contains the job's trials."""
        return StudyUid(self.uid)

    @property
    def started_trials(self) -> int:
        """Number of trials that this job has started so far."""
        return self.next_trial - self.spec.first_trial
