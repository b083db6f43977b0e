"""The allowed changes of a trial: one transition table, and pure functions that return the changed `Trial`.
Both the controller and clients of the study APIs trigger changes. Therefore an `Illegal` cell is an error of
the caller (FailedPrecondition) and not of the service. Times are in ns since the epoch."""

import enum
from typing import Final

from msgspec.structs import replace

from trainshed.core.errors import FailedPrecondition
from trainshed.core.lifecycle.transition import ROWS, Illegal, Next, Table
from trainshed.core.study.records import Measurement, Trial, TrialState
from trainshed.core.units import Nanos


class TrialTrigger(enum.StrEnum):
    """The triggers that change the state of a trial. Their values complete the sentence "The trial cannot be
    ..."."""

    #: The trial was assigned to a client.
    ASSIGNED = "assigned to a client"
    #: A measurement of the trial arrived.
    MEASURED = "measured"
    #: An early stopping rule or a StopTrial call requested the trial to stop.
    STOP_ASKED = "stopped"
    #: The trial ended with a final measurement.
    COMPLETED = "completed"
    #: The trial ended without a final measurement.
    FOUND_INFEASIBLE = "completed as infeasible"


TRIAL: Final = Table("trial", TrialState, TrialTrigger, ROWS["trial"])

NOT_MEASURED: Final = "It was completed without a measurement of every metric of its study."
"""Why a trial is infeasible if it is completed without a measurement that can be final
(facts/resources#trials, facts/tuning#metrics)."""


def assign(trial: Trial, client: str, now: Nanos) -> Trial:
    """Return the trial after its assignment to `client`. Raise FailedPrecondition unless it is REQUESTED."""
    return replace(_move(trial, TrialTrigger.ASSIGNED), client=client, started=now)


def record_measurement(trial: Trial, now: Nanos) -> Trial:
    """Return the trial after its client has added a measurement. Raise FailedPrecondition if it has ended."""
    return replace(_move(trial, TrialTrigger.MEASURED), started=trial.started or now)


def request_stop(trial: Trial) -> Trial:
    """Return the trial after a request to stop. Requests may be repeated. Raise FailedPrecondition if it has
    ended."""
    return replace(_move(trial, TrialTrigger.STOP_ASKED), stopped_early=True)


def complete(trial: Trial, final: Measurement | None, now: Nanos) -> Trial:
    """Return the trial as completed with this final measurement, or as infeasible if `final` is None. Raise
    FailedPrecondition if it has already ended, because a final measurement is never replaced."""
    if final is None:
        return infeasible(trial, NOT_MEASURED, now)
    return replace(_move(trial, TrialTrigger.COMPLETED), final=final, ended=now)


def infeasible(trial: Trial, reason: str, now: Nanos) -> Trial:
    """Return the trial as ended without a final measurement. Raise FailedPrecondition if it has already
    ended."""
    moved = _move(trial, TrialTrigger.FOUND_INFEASIBLE)
    return replace(moved, final=None, infeasible_reason=reason, ended=now)


def _move(trial: Trial, trigger: TrialTrigger) -> Trial:
    cell = TRIAL.cells[trial.state, trigger]
    if isinstance(cell, Illegal):
        raise FailedPrecondition(
            f"Trial {trial.number} is {trial.state} and cannot be {trigger}: {cell.why}."
        )
    return replace(trial, state=cell.state) if isinstance(cell, Next) else trial
