"""The four transition tables: for every (state, trigger) the next state, why nothing happens, or why the
trigger cannot come.

A table is total: building one that leaves a cell out raises ValueError. Diagrams in docs/lifecycle.md are
made from these tables; tests/unit/test_lifecycle_tables.py walks every cell.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Final, Generic, TypeVar

from msgspec import Struct

from trainshed.core.lifecycle.states import (
    AttemptState,
    AttemptTrigger,
    JobState,
    JobTrigger,
    PipelineState,
    PipelineTrigger,
    ReplicaState,
    ReplicaTrigger,
)

State = TypeVar("State", bound=enum.StrEnum)
Trigger = TypeVar("Trigger", bound=enum.StrEnum)


class IllegalTransition(Exception):
    """A trigger came in a state in which it can never come: a bug of ours. The message tells what happened
    before."""


class Next(Struct, Generic[State], frozen=True):
    """The trigger leads to `state` (which may be the same)."""

    state: State


class Ignore(Struct, frozen=True):
    """Nothing happens, for the reason `why`."""

    why: str


class Illegal(Struct, frozen=True):
    """The trigger can never come in this state, for the reason `why`."""

    why: str


class Table(Generic[State, Trigger]):
    """All cells of one state machine. `rows` holds for each state one cell per trigger, in the order of
    `triggers`."""

    def __init__(
        self,
        name: str,
        states: type[State],
        triggers: type[Trigger],
        rows: Mapping[State, Mapping[Trigger, "State | Ignore | Illegal"]],
    ) -> None:
        self.name = name
        self.states = tuple(states)
        self.triggers = tuple(triggers)
        self.cells: dict[tuple[State, Trigger], Next[State] | Ignore | Illegal] = {}
        for state in states:
            for trigger in triggers:
                if trigger not in rows.get(state, {}):
                    raise ValueError(f"{name}: nothing is said of {trigger!r} in {state}")
                cell = rows[state][trigger]
                self.cells[state, trigger] = (
                    cell if isinstance(cell, Ignore | Illegal) else Next(cell)
                )

    def fire(self, state: State, trigger: Trigger, timeline: Iterable[str] = ()) -> State | None:
        """Return the next state; None if the trigger is ignored. Raise IllegalTransition, with the lines of
        `timeline` in its message, if the trigger can never come here."""
        cell = self.cells[state, trigger]
        if isinstance(cell, Illegal):
            story = "".join(f"\n  {line}" for line in timeline)
            raise IllegalTransition(
                f"{self.name} in state {state}: {trigger!r} can never come here: {cell.why}. "
                f"What happened until then:{story or ' nothing'}"
            )
        return cell.state if isinstance(cell, Next) else None


_J, _A, _R, _P = JobState, AttemptState, ReplicaState, PipelineState
_jt, _at, _rt, _pt = JobTrigger, AttemptTrigger, ReplicaTrigger, PipelineTrigger

_NOT_STARTED: Final = Illegal("no attempt has begun")
_JOB_OVER: Final = Ignore("the job is over; whoever reports may report twice")
_NEVER_AFTER: Final = Illegal("the end of a job is decided once")
_CANCEL_STANDS: Final = Ignore("the cancel stands")

_JOB_FINAL: Final = {
    _jt.ADMITTED: _JOB_OVER,
    _jt.ALL_UP: _JOB_OVER,
    _jt.RETRIED: _NEVER_AFTER,
    _jt.CANCEL_ACCEPTED: _JOB_OVER,
    _jt.SUCCEEDED: _NEVER_AFTER,
    _jt.FAILED: _NEVER_AFTER,
    _jt.CANCELLED: _NEVER_AFTER,
}

JOB: Final = Table(
    "job",
    JobState,
    JobTrigger,
    {
        _J.QUEUED: {
            _jt.ADMITTED: _J.PREPARING,
            _jt.ALL_UP: _NOT_STARTED,
            _jt.RETRIED: _J.QUEUED,  # a stock-out: it waits, and asks again after a pause
            _jt.CANCEL_ACCEPTED: _J.CANCELLING,
            _jt.SUCCEEDED: _NOT_STARTED,
            _jt.FAILED: _J.FAILED,
            _jt.CANCELLED: Illegal("a cancel is accepted first"),
        },
        _J.PREPARING: {
            _jt.ADMITTED: _J.PREPARING,  # a later attempt that had to wait for capacity
            _jt.ALL_UP: _J.RUNNING,
            _jt.RETRIED: _J.PREPARING,
            _jt.CANCEL_ACCEPTED: _J.CANCELLING,
            _jt.SUCCEEDED: _J.SUCCEEDED,  # the primary ended before all replicas were up
            _jt.FAILED: _J.FAILED,
            _jt.CANCELLED: Illegal("a cancel is accepted first"),
        },
        _J.RUNNING: {
            _jt.ADMITTED: Illegal("a running attempt has its capacity"),
            _jt.ALL_UP: Ignore("a restarted replica is up again"),
            _jt.RETRIED: _J.PREPARING,
            _jt.CANCEL_ACCEPTED: _J.CANCELLING,
            _jt.SUCCEEDED: _J.SUCCEEDED,
            _jt.FAILED: _J.FAILED,
            _jt.CANCELLED: Illegal("a cancel is accepted first"),
        },
        _J.CANCELLING: {
            _jt.ADMITTED: _CANCEL_STANDS,
            _jt.ALL_UP: _CANCEL_STANDS,
            _jt.RETRIED: _CANCEL_STANDS,
            _jt.CANCEL_ACCEPTED: Ignore("it is being cancelled already"),
            _jt.SUCCEEDED: _J.SUCCEEDED,  # the primary had exited before the cancel was accepted
            _jt.FAILED: _J.FAILED,  # likewise
            _jt.CANCELLED: _J.CANCELLED,
        },
        _J.SUCCEEDED: _JOB_FINAL,
        _J.FAILED: _JOB_FINAL,
        _J.CANCELLED: _JOB_FINAL,
    },
)

_HAS_CAPACITY: Final = Illegal("the attempt has its capacity")
_PREPARED_LATE: Final = Ignore("the environments of this attempt were ready before")
_LIVES: Final = Illegal("its end must be decided first")
_ENDING: Final = Ignore("the attempt is to end")
_ATTEMPT_OVER: Final = Illegal("the job's last attempt is over")

ATTEMPT: Final = Table(
    "attempt",
    AttemptState,
    AttemptTrigger,
    {
        _A.WAITING: {
            _at.ADMITTED: _A.PREPARING,
            _at.PREPARED: Ignore("the attempt that was prepared has given its capacity back"),
            _at.ALL_UP: Illegal("there is no attempt"),
            _at.END_DECIDED: _A.STOPPING,
            _at.AGAIN_HERE: Illegal("there is no capacity to go on with"),
            _at.AGAIN_LATER: _A.WAITING,  # a stock-out
            _at.ENDED: _LIVES,
        },
        _A.PREPARING: {
            _at.ADMITTED: _HAS_CAPACITY,
            _at.PREPARED: _A.STARTING,
            _at.ALL_UP: Illegal("nothing was started"),
            _at.END_DECIDED: _A.STOPPING,
            _at.AGAIN_HERE: _LIVES,
            _at.AGAIN_LATER: _LIVES,
            _at.ENDED: _LIVES,
        },
        _A.STARTING: {
            _at.ADMITTED: _HAS_CAPACITY,
            _at.PREPARED: _PREPARED_LATE,
            _at.ALL_UP: _A.RUNNING,
            _at.END_DECIDED: _A.STOPPING,
            _at.AGAIN_HERE: _LIVES,
            _at.AGAIN_LATER: _LIVES,
            _at.ENDED: _LIVES,
        },
        _A.RUNNING: {
            _at.ADMITTED: _HAS_CAPACITY,
            _at.PREPARED: _PREPARED_LATE,
            _at.ALL_UP: Ignore("a restarted replica is up again"),
            _at.END_DECIDED: _A.STOPPING,
            _at.AGAIN_HERE: _LIVES,
            _at.AGAIN_LATER: _LIVES,
            _at.ENDED: _LIVES,
        },
        _A.STOPPING: {
            _at.ADMITTED: Ignore("the job ends before it gets its capacity"),
            _at.PREPARED: _ENDING,
            _at.ALL_UP: _ENDING,
            _at.END_DECIDED: _ENDING,
            _at.AGAIN_HERE: _A.PREPARING,
            _at.AGAIN_LATER: _A.WAITING,
            _at.ENDED: _A.OVER,
        },
        _A.OVER: dict.fromkeys(AttemptTrigger, _ATTEMPT_OVER),
    },
)

_REPORTED: Final = Ignore("its end was reported before")
_STILL_THERE: Final = Illegal("its last incarnation is not over")

REPLICA: Final = Table(
    "replica",
    ReplicaState,
    ReplicaTrigger,
    {
        _R.WAITING: {
            _rt.STARTED: _R.RUNNING,
            _rt.ASKED_TO_LEAVE: _R.STOPPING,
            _rt.EXITED: _R.EXITED,
            _rt.LOST: _R.LOST,
            _rt.RESTARTED: _STILL_THERE,
        },
        _R.RUNNING: {
            _rt.STARTED: Ignore("its start was reported before"),
            _rt.ASKED_TO_LEAVE: _R.STOPPING,
            _rt.EXITED: _R.EXITED,
            _rt.LOST: _R.LOST,
            _rt.RESTARTED: _STILL_THERE,
        },
        _R.STOPPING: {
            _rt.STARTED: Ignore("it was asked to leave meanwhile"),
            _rt.ASKED_TO_LEAVE: Ignore("it was asked before"),
            _rt.EXITED: _R.EXITED,
            _rt.LOST: _R.LOST,
            _rt.RESTARTED: _STILL_THERE,
        },
        _R.EXITED: {
            _rt.STARTED: _REPORTED,
            _rt.ASKED_TO_LEAVE: Ignore("nothing of it lives"),
            _rt.EXITED: _REPORTED,
            _rt.LOST: _REPORTED,
            _rt.RESTARTED: _R.WAITING,
        },
        _R.LOST: {
            _rt.STARTED: _REPORTED,
            _rt.ASKED_TO_LEAVE: Ignore("nothing of it lives"),
            _rt.EXITED: _REPORTED,
            _rt.LOST: _REPORTED,
            _rt.RESTARTED: _R.WAITING,
        },
    },
)

_PIPELINE_OVER: Final = Ignore("the pipeline is over; whoever reports may report twice")
_NO_JOB: Final = Illegal("its job is not stored yet")
_HAS_JOB: Final = Ignore("its job was stored before")

_PIPELINE_FINAL: Final = dict.fromkeys(PipelineTrigger, _PIPELINE_OVER)

PIPELINE: Final = Table(
    "pipeline",
    PipelineState,
    PipelineTrigger,
    {
        _P.QUEUED: {
            _pt.JOB_CREATED: _P.PENDING,
            _pt.JOB_RUNNING: _NO_JOB,
            _pt.JOB_RETRIED: _NO_JOB,
            _pt.CANCEL_ACCEPTED: _P.CANCELLED,  # there is nothing to wait for
            _pt.JOB_SUCCEEDED: _NO_JOB,
            _pt.JOB_FAILED: _P.FAILED,  # its job could not be created
            _pt.JOB_CANCELLED: _NO_JOB,
            _pt.MODEL_FAILED: _NO_JOB,
        },
        _P.PENDING: {
            _pt.JOB_CREATED: _HAS_JOB,
            _pt.JOB_RUNNING: _P.RUNNING,
            _pt.JOB_RETRIED: _P.PENDING,
            _pt.CANCEL_ACCEPTED: _P.CANCELLING,
            _pt.JOB_SUCCEEDED: _P.SUCCEEDED,
            _pt.JOB_FAILED: _P.FAILED,
            _pt.JOB_CANCELLED: _P.CANCELLED,
            _pt.MODEL_FAILED: _P.FAILED,
        },
        _P.RUNNING: {
            _pt.JOB_CREATED: _HAS_JOB,
            _pt.JOB_RUNNING: Ignore("it is seen running again"),
            _pt.JOB_RETRIED: _P.PENDING,
            _pt.CANCEL_ACCEPTED: _P.CANCELLING,
            _pt.JOB_SUCCEEDED: _P.SUCCEEDED,
            _pt.JOB_FAILED: _P.FAILED,
            _pt.JOB_CANCELLED: _P.CANCELLED,
            _pt.MODEL_FAILED: _P.FAILED,
        },
        _P.CANCELLING: {
            _pt.JOB_CREATED: _HAS_JOB,
            _pt.JOB_RUNNING: _CANCEL_STANDS,
            _pt.JOB_RETRIED: _CANCEL_STANDS,
            _pt.CANCEL_ACCEPTED: Ignore("it is being cancelled already"),
            _pt.JOB_SUCCEEDED: _P.SUCCEEDED,
            _pt.JOB_FAILED: _P.FAILED,
            _pt.JOB_CANCELLED: _P.CANCELLED,
            _pt.MODEL_FAILED: _P.FAILED,
        },
        _P.SUCCEEDED: _PIPELINE_FINAL,
        _P.FAILED: _PIPELINE_FINAL,
        _P.CANCELLED: _PIPELINE_FINAL,
    },
)
