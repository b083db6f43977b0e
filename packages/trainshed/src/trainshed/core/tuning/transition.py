"""One transition of a tuning job: the job before and after it, the trials that changed, and the entries of
its timeline. Lives as long as one commit is prepared; its result is frozen.
"""

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.transition import WorkTransition
from trainshed.core.study.records import Measurement, Trial
from trainshed.core.tuning.records import RunningTrial, TuningJob
from trainshed.core.units import Nanos


class Result(Struct, frozen=True):
    """The result of a transition: `trials` and `measurements` are those that are new or changed."""

    job: TuningJob
    timeline: tuple[TimelineEntry, ...]
    trials: tuple[Trial, ...]
    measurements: tuple[tuple[int, Measurement], ...]


class Transition(WorkTransition[TuningJob]):
    """A tuning job while one commit of it is prepared."""

    __slots__ = ("_measured", "_trials")

    def __init__(self, job: TuningJob, now: Nanos) -> None:
        super().__init__(job, now)
        self._trials: dict[int, Trial] = {}
        self._measured: list[tuple[int, Measurement]] = []

    def result(self) -> Result:
        if self.job is not self._before:
            self.job = replace(self.job, updated=max(self.now, self.job.updated))
        return Result(self.job, tuple(self._entries), self.trials, tuple(self._measured))

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials that are new or changed so far."""
        return tuple(self._trials.values())

    def running(self, number: int) -> RunningTrial | None:
        """Return the running trial of that number; None if it is over."""
        return next((other for other in self.job.running if other.number == number), None)

    def current(self, trial: Trial) -> Trial:
        """Return a trial as this transition has left it."""
        return self._trials.get(trial.number, trial)

    def store(self, trial: Trial) -> None:
        """Store a trial that is new or has changed."""
        self._trials[trial.number] = trial

    def over(self, trial: Trial) -> None:
        """Store a trial that has ended, and take it from the running ones."""
        self.store(trial)
        self.change(
            running=tuple(other for other in self.job.running if other.number != trial.number)
        )

    def measure(self, number: int, measurement: Measurement) -> None:
        """Add a measurement of a trial that is not stored yet."""
        self._measured.append((number, measurement))
