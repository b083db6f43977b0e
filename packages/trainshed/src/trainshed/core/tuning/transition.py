"""One transition of a tuning job: the job before and after it, the trials that changed, and the entries of
its timeline. Lives as long as one commit is prepared; its result is frozen.
"""

from trainshed.core.lifecycle.transition import WorkTransition
from trainshed.core.study.records import Measurement, Trial
from trainshed.core.tuning.records import RunningTrial, TuningJob
from trainshed.core.units import Nanos


class Transition(WorkTransition[TuningJob]):
    """A tuning job while one commit of it is prepared."""

    __slots__ = ("measurements", "trials")

    def __init__(self, job: TuningJob, now: Nanos) -> None:
        super().__init__(job, now)
        #: The trials that are new or changed, by number.
        self.trials: dict[int, Trial] = {}
        #: The measurements that are new, each with the number of its trial.
        self.measurements: list[tuple[int, Measurement]] = []

    def running(self, number: int) -> RunningTrial | None:
        """Return the running trial of that number; None if it is over."""
        return next((other for other in self.job.running if other.number == number), None)

    def current(self, trial: Trial) -> Trial:
        """Return a trial as this transition has left it."""
        return self.trials.get(trial.number, trial)

    def store(self, trial: Trial) -> None:
        """Store a trial that is new or has changed."""
        self.trials[trial.number] = trial

    def over(self, trial: Trial) -> None:
        """Store a trial that has ended, and take it from the running ones."""
        self.store(trial)
        self.change(
            running=tuple(other for other in self.job.running if other.number != trial.number)
        )
