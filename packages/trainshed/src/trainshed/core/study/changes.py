"""The possible changes of a trial, and its state afterwards: one transition table, and pure
changes of `Trial` that obey it.

The triggers come from clients of the study APIs as well as from the controller. Therefore an
`Illegal` cell is an error of the caller (FailedPrecondition) and not of the service. Times are ns
since the epoch.
"""

import enum
from typing import Final

from msgspec.structs import replace

from trainshed.core.errors import FailedPrecondition
from trainshed.core.lifecycle.transition import ROWS, Illegal, Next, Table
from trainshed.core.study.records import Measurement, Trial, TrialState
from trainshed.core.units import Nanos


class TrialTrigger(enum.StrEnum):
    """The triggers that move a trial from state to state, as what is done to it."""

    #: It was given to a client.
    ASSIGNED = "assigned to a client"
    #: A measurement of it came.
    MEASURED = "measured"
    #: An early stopping rule or a StopTrial call asked it to stop.
    STOP_ASKED = "stopped"
    #: It ended with a final measurement.
    COMPLETED = "completed"
    #: It ended without one.
    FOUND_INFEASIBLE = "completed as infeasible"


TRIAL: Final = Table("trial", TrialState, TrialTrigger, ROWS["trial"])

NOT_MEASURED: Final = "It was completed without a measurement of every metric of its study."
"""Why a trial is infeasible that was completed without anything to become its final measurement
(facts/resources#trials, facts/tuning#metrics)."""


def assigned(trial: Trial, client: str, now: Nanos) -> Trial:
    """Return the trial, which `client` evaluates from now on. Raise FailedPrecondition unless it is
    REQUESTED."""
    return replace(_moved(trial, TrialTrigger.ASSIGNED), client=client, started=now)


def measured(trial: Trial, now: Nanos) -> Trial:
    """Return the trial after a measurement of it by its evaluator. Raise FailedPrecondition if it
    has ended."""
    return replace(_moved(trial, TrialTrigger.MEASURED), started=trial.started or now)


def stopped(trial: Trial) -> Trial:
    """Return the trial, which is to stop; it may be asked twice. Raise FailedPrecondition if it is over."""
    return replace(_moved(trial, TrialTrigger.STOP_ASKED), stopped_early=True)


def completed(trial: Trial, final: Measurement | None, now: Nanos) -> Trial:
    """Return the trial as completed with this final measurement, or as infeasible if there is none. Raise
    FailedPrecondition if it was over before: a final measurement is never replaced."""
    if final is None:
        return infeasible(trial, NOT_MEASURED, now)
    return replace(_moved(trial, TrialTrigger.COMPLETED), final=final, ended=now)


def infeasible(trial: Trial, reason: str, now: Nanos) -> Trial:
    """Return the trial as over without a final measurement. Raise FailedPrecondition if it was over
    before."""
    moved = _moved(trial, TrialTrigger.FOUND_INFEASIBLE)
    return replace(moved, final=None, infeasible_reason=reason, ended=now)


def _moved(trial: Trial, trigger: TrialTrigger) -> Trial:
    cell = TRIAL.cells[trial.state, trigger]
    if isinstance(cell, Illegal):
        raise FailedPrecondition(
            f"Trial {trial.number} is {trial.state} and cannot be {trigger}: {cell.why}."
        )
    return replace(trial, state=cell.state) if isinstance(cell, Next) else trial
