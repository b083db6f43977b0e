"""Tuning jobs and their trials as `/trainshed/v1` gives them, with types. Pure.

Moments are nanoseconds since the epoch, 0 where one has not come.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.cli.text.moments import parse_moment
from trainshed.core.lifecycle.states import JobState
from trainshed.core.study.spec import Goal, Value
from trainshed.core.study.trials import TrialState


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
    def parse(found: Mapping[str, Any] | None) -> "TuningView | None":
        """Read the `tuning` of a description; None if there is none."""
        if found is None:
            return None
        return TuningView(
            metric=found["metric"],
            goal=Goal(found["goal"]),
            algorithm=found["algorithm"],
            most=found["maxTrials"],
            parallel=found["parallelTrials"],
            first=found["firstTrial"],
            succeeded=found["succeeded"],
            infeasible=found["infeasible"],
            running=found["running"],
            best=found["best"],
            exhausted=found["exhausted"],
            stopping=found["stopping"],
            replicas=found.get("replicas", 1),
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
    started: int = 0
    ended: int = 0
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
    def parse(found: Mapping[str, Any]) -> "TrialView":
        """Read one of the `trials`."""
        curve: list[list[float]] = found["curve"]
        step, reached = curve[-1] if curve else (0, None)
        value: float | None = found["value"]
        return TrialView(
            number=found["number"],
            state=TrialState(found["state"]),
            parameters=tuple(found["parameters"].items()),
            value=value,
            reached=reached if value is None else value,
            step=int(step) if value is None else found["step"],
            started=parse_moment(found["startTime"]),
            ended=parse_moment(found["endTime"]),
            job=found["job"],
            job_state=JobState(found["jobState"]) if found["jobState"] else None,
            stopped_early=found["stoppedEarly"],
            reason=found["reason"],
            curve=tuple(value for _, value in curve),
        )

    @property
    def word(self) -> str:
        """Its state for people: one whose job does not run yet says what that does."""
        if self.state is TrialState.ACTIVE and self.job_state and not self.job_state.is_final:
            return self.job_state.value
        return self.state.value

    def ran(self, now: int) -> int:
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
