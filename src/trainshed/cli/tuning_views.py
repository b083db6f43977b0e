"""Typed views of the tuning jobs and trials of `/trainshed/v1`, for display. Pure.

Times are nanoseconds since the epoch; 0 = not yet.
"""

from dataclasses import dataclass

from trainshed.cli.text.moments import parse_moment
from trainshed.core.lifecycle.states import JobState
from trainshed.core.study.records import TrialState
from trainshed.core.study.spec import Goal, Value
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.jobs import Trial, Tuning


@dataclass(frozen=True, slots=True)
class TuningView:
    """A tuning job's objective, limits and progress."""

    metric: str
    goal: Goal
    algorithm: str
    #: Maximum trials.
    most: int
    #: Maximum trials at a time.
    parallel: int
    #: Number of its first trial.
    first: int
    #: Numbers of trials by how they ended, and of those that run.
    succeeded: int
    infeasible: int
    running: int
    #: Number of the best trial so far; 0 = none.
    best: int
    #: True if there is no other point left to try.
    exhausted: bool
    #: The kind of early stopping; "" = none.
    stopping: str
    #: Replicas of each trial's job.
    replicas: int = 1

    @staticmethod
    def of(tuning: Tuning) -> "TuningView":
        """Return the view of the `tuning` of a description."""
        return TuningView(
            metric=tuning.metric,
            goal=Goal(tuning.goal),
            algorithm=tuning.algorithm,
            most=tuning.max_trials,
            parallel=tuning.parallel_trials,
            first=tuning.first_trial,
            succeeded=tuning.succeeded,
            infeasible=tuning.infeasible,
            running=tuning.running,
            best=tuning.best,
            exhausted=tuning.exhausted,
            stopping=tuning.stopping,
            replicas=tuning.replicas,
        )

    @property
    def done(self) -> int:
        """The number of trials that are over."""
        return self.succeeded + self.infeasible


@dataclass(frozen=True, slots=True)
class TrialView:
    """A trial of a tuning job or a study."""

    number: int
    state: TrialState
    parameters: tuple[tuple[str, Value], ...]
    #: Final value of the objective; None = it is not over, or has no result.
    value: float | None = None
    #: The newest value that was measured, and its step.
    reached: float | None = None
    step: int = 0
    started: Nanos = 0
    ended: Nanos = 0
    #: Name of the job that evaluates it; "" = none, or none any more.
    job: str = ""
    job_state: JobState | None = None
    stopped_early: bool = False
    #: Why it is infeasible; "" = it is not.
    reason: str = ""
    #: Values of the objective, in the order of their steps.
    curve: tuple[float, ...] = ()
    #: Values of other metrics, as text.
    more: str = ""

    @staticmethod
    def of(trial: Trial) -> "TrialView":
        """Return the view of one of the `trials` of a description."""
        step, reached = trial.curve[-1] if trial.curve else (0, None)
        return TrialView(
            number=trial.number,
            state=TrialState(trial.state),
            parameters=tuple(trial.parameters.items()),
            value=trial.value,
            reached=reached if trial.value is None else trial.value,
            step=step if trial.value is None else trial.step,
            started=parse_moment(trial.start_time),
            ended=parse_moment(trial.end_time),
            job=trial.job,
            job_state=JobState(trial.job_state) if trial.job_state else None,
            stopped_early=trial.stopped_early,
            reason=trial.reason,
            curve=tuple(value for _, value in trial.curve),
        )

    @property
    def word(self) -> str:
        """Its state as it is shown: of an active trial, the state of its job, if that is not over."""
        if self.state is TrialState.ACTIVE and self.job_state and not self.job_state.is_final:
            return self.job_state.value
        return self.state.value

    def ran(self, now: Nanos) -> int:
        """Return how long its program has run, in nanoseconds; 0 = it has not started."""
        return (self.ended or now) - self.started if self.started else 0


def shown(value: Value, digits: int = 4) -> str:
    """Return a value as text: a number with `digits` significant digits, a whole one without a fraction."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e9 else f"{value:.{digits}g}"
    return str(value)


def assignment(parameters: tuple[tuple[str, Value], ...], digits: int = 4) -> str:
    """Return parameters as text, such as `lr=0.01, depth=3`."""
    return ", ".join(f"{name}={shown(value, digits)}" for name, value in parameters)
