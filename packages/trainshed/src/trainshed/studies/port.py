"""The ports to algorithms and stopping rules. Every function behind them is pure. The same spec, trials and
seed give the same result on every machine of one kind and after every restart. Algorithms store nothing.
Conformance suite: tests/contract/studies."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from trainshed.core.study.records import Measurement, Parameters, Trial, TrialState
from trainshed.core.study.spec import StudySpec


class TrialData(Struct, frozen=True):
    """The data of a trial for an algorithm."""

    number: int
    state: TrialState
    parameters: Parameters
    #: The final measurement. None for pending and infeasible trials.
    final: Measurement | None = None


def trial_data(trial: Trial) -> TrialData:
    """Return a trial in its form for algorithms."""
    return TrialData(trial.number, trial.state, trial.parameters, trial.final)


class Proposals(Struct, frozen=True):
    """Points that an algorithm proposes, the most promising first."""

    parameters: tuple[Parameters, ...]
    #: Whether no points are left, as at the end of grid search. There may then be fewer points than
    #: requested.
    exhausted: bool = False


class Algorithm(Protocol):
    """Proposes trials. It blocks while it computes, so it runs in its own process. Raises nothing for a valid
    spec."""

    def suggest(self, spec: StudySpec, trials: Sequence[TrialData], count: int, seed: int) -> Proposals:
        """Return `count` further points to try, the most promising first, in addition to pending points.
        `trials`: ascending by number, including pending ones (REQUESTED, ACTIVE, STOPPING). The result
        depends only on `trials`, `spec` and `seed`. One request for 2 points gives the same points as two
        requests for 1 point, if the first point is stored in between."""
        ...


class Curve(Struct, frozen=True):
    """A trial's learning curve."""

    #: The trial's number in its study.
    number: int
    #: The measurements, ascending by step.
    measurements: tuple[Measurement, ...]
    #: Whether the trial has ended, so no measurements follow.
    is_over: bool


class StoppingVerdict(Struct, frozen=True):
    """The decision of a stopping rule on a trial."""

    should_stop: bool
    #: The reason in words, for the timeline: the compared values, or the reason why it is too early to
    #: decide.
    why: str


class AdvisorFailed(Exception):
    """The computation failed, because its process died or reached its timeout. Callers may retry. The message
    contains the cause."""
