"""What must become of a job, by SPEC §2 and §2.1 alone: a small second reading of the rules, knowing no code of ours."""

from dataclasses import dataclass
from typing import Final

from tests.chaos.plans import End, JobPlan

_RESTARTS: Final = 5
"""Restarts per replica and attempt."""
_RETRIES: Final = 3
"""Job retries, per cause."""
_TRANSIENT: Final = {End.ABORTS: 134, End.SEGFAULTS: 139, End.EXITS_139: 139}
"""As published for custom containers."""

CANCELLED: Final = "The job was cancelled by the user."


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ends: state, code and beginning of the public message (0 and "": no error)."""

    state: str
    code: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A cancel as its sender knows it, in ns: the service accepted it between `sent` and `answered`, if `accepted`;
    else it was refused in the end, after `tries` requests of which all but the last got no answer."""

    sent: int
    answered: int
    accepted: bool
    tries: int


@dataclass(frozen=True, slots=True)
class History:
    """What was done and seen from outside. `ended`: between which moments (ns) the program whose end decides ended
    by itself; None if it never did."""

    cancel: Cancel | None = None
    ended: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Course:
    """How a job goes when nobody cancels it. `lives`: of the actor, per attempt. The outcome is None
    for one that would go on for ever."""

    lives: tuple[int, ...]
    outcome: Outcome | None


def course(plan: JobPlan) -> Course:
    """SPEC §2.1, row by row."""
    pool = plan.replicas[plan.actor]
    lives = [0]
    number = transient = lost = 0
    while True:
        life = pool.life(number)
        number += 1
        lives[-1] += 1
        if life.end is End.RUNS_ON:
            return Course(tuple(lives), None)
        if life.end is End.SUCCEEDS:
            return Course(tuple(lives), Outcome("SUCCEEDED"))
        if life.end is End.FAILS:
            return Course(tuple(lives), _failed(plan, 7))
        if life.end in _TRANSIENT:
            if transient == _RETRIES or plan.no_retries:
                return Course(tuple(lives), _failed(plan, _TRANSIENT[life.end]))
            transient += 1
            lives.append(0)
        elif plan.restart_whole or lives[-1] > _RESTARTS:
            if lost == _RETRIES or plan.no_retries:
                return Course(tuple(lives), Outcome("FAILED", 3))
            lost += 1
            lives.append(0)


def expected(plan: JobPlan, history: History) -> tuple[Outcome, ...]:
    """Every outcome that is right; two only where a cancel and an end were too close to tell apart.

    SPEC §2: after an accepted cancel the job ends CANCELLED, unless the primary had already exited.
    """
    natural = course(plan).outcome
    cancelled = Outcome("CANCELLED", 1, CANCELLED)
    cancel = history.cancel
    if cancel is None:
        assert natural is not None, f"{plan.name} would never end"
        return (natural,)
    if natural is None or history.ended is None:
        return (cancelled,)
    if not cancel.accepted:
        # An earlier request may have been accepted, and its answer lost.
        return (natural,) if cancel.tries == 1 else (natural, cancelled)
    if history.ended[1] < cancel.sent:
        return (natural,)
    if history.ended[0] > cancel.answered:
        return (cancelled,)
    return (natural, cancelled)


def decisive(plan: JobPlan) -> tuple[str, End]:
    """The replica whose end decides the job if nobody cancels it, and that end."""
    number = sum(course(plan).lives) - 1
    end = plan.replicas[plan.actor].life(number).end
    if end is End.SUCCEEDS:
        return "workerpool0-0", end
    return plan.actor, end


def _failed(plan: JobPlan, status: int) -> Outcome:
    pool, _, index = plan.actor.removeprefix("workerpool").partition("-")
    name = f"{('master', 'worker')[int(pool)]} {index}" if plan.is_ml else plan.actor
    return Outcome("FAILED", 3, f"The replica {name} exited with a non-zero status of {status}.")
