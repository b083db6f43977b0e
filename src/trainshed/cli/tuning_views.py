"""Tuning jobs and their trials as `/trainshed/v1` gives them, with types. Pure.

Moments are nanoseconds since the epoch, 0 where one has not come.
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
    """What a tuning job looks for and how far it is."""

    metric: str
    goal: Goal
    algorithm: str
    #: Trials in all.
    most: int
    #: Trials at once.
    parallel: int
    #: The number that its trials begin with.
    first: int
    succeeded: int
    infeasible: int
    running: int
    #: Number of the best trial so far; 0 = none.
    best: int
    #: Nothing is left to try.
    exhausted: bool
    stopping: str
    #: Of each trial's job.
    replicas: int = 1

    @staticmethod
    def of(tuning: Tuning) -> "TuningView":
        """The `tuning` of a description."""
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
        """How many trials are over."""
        return self.succeeded + self.infeasible


@dataclass(frozen=True, slots=True)
class TrialView:
    """A trial of a tuning job or a study."""

    number: int
    state: TrialState
    parameters: tuple[tuple[str, Value], ...]
    #: Of the objective at the end; None before it, and without a result.
    value: float | None = None
    #: The newest value that was measured, and at which step.
    reached: float | None = None
    step: int = 0
    #: ns since the epoch; 0 = not yet.
    started: Nanos = 0
    ended: Nanos = 0
    #: Name of the job that evaluates it; "" = none (any more).
    job: str = ""
    job_state: JobState | None = None
    stopped_early: bool = False
    reason: str = ""
    #: Of the objective, by step.
    curve: tuple[float, ...] = ()
    #: What else was measured, in words.
    more: str = ""

    @staticmethod
    def of(trial: Trial) -> "TrialView":
        """One of the `trials` of a description."""
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
        """Its state for people: one whose job does not run yet says what that does."""
        if self.state is TrialState.ACTIVE and self.job_state and not self.job_state.is_final:
            return self.job_state.value
        return self.state.value

    def ran(self, now: Nanos) -> int:
        """How long its program has run, 0 if it has not yet."""
        return (self.ended or now) - self.started if self.started else 0


def shown(value: Value, digits: int = 4) -> str:
    """A number with so many digits, a whole one without a fraction; a text as it is."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e9 else f"{value:.{digits}g}"
    return str(value)


def assignment(parameters: tuple[tuple[str, Value], ...], digits: int = 4) -> str:
    """`lr=0.01, depth=3`."""
    return ", ".join(f"{name}={shown(value, digits)}" for name, value in parameters)
