"""The expected outcome of a job by spec/lifecycle and spec/failures: a small independent implementation of
the rules.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.plans import End, JobPlan


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a job: state, code and prefix of the public message (0 and "": no error)."""

    state: str
    code: int = 0
    message: str = ""


_RESTARTS: Final = 5
"""Restarts per replica and attempt."""
_LOST: Final = frozenset(end for end in End if end.is_kill or end.drill in ("kill", "maintenance"))
"""Exits after which the replica is restarted."""
_CAUSES: Final = {
    End.ABORTS: "transient",
    End.SEGFAULTS: "transient",
    End.EXITS_139: "transient",
    End.DRILLED_SEGV: "transient",
    End.DRILLED_PREEMPT: "spot preemption",
    End.DRILLED_STOCKOUT: "no capacity",
    End.DRILLED_INTERNAL: "the service itself",
}
_RETRIES: Final = {"lost": 3, "transient": 3, "spot preemption": 6, "no capacity": 3, "the service itself": 2}
"""Job retries by cause. "3 attempts in total" are two retries."""
_NO_ROOM: Final = "Resources are insufficient in region: us-central1."
_SPENT: Final = {
    "lost": Outcome("FAILED", 3),
    "spot preemption": Outcome("FAILED", 8, _NO_ROOM),
    "no capacity": Outcome("FAILED", 8, _NO_ROOM),
    "the service itself": Outcome("FAILED", 13, "Internal error occurred for the current attempt"),
}
"""The outcome without remaining retries. For a crash, the exit determines it."""
_STATUS: Final = {
    End.FAILS: 7,
    End.ABORTS: 134,
    End.SEGFAULTS: 139,
    End.EXITS_139: 139,
    End.DRILLED_SEGV: 139,
}
"""Exit statuses by end, as published for custom containers."""

CANCELLED: Final = "The job was cancelled by the user."


@dataclass(frozen=True, slots=True)
class Cancel:
    """A cancel from the sender's view, with times in ns. If `is_accepted`, the service accepted it between
    `send_time` and `response_time`. Otherwise it was rejected after `tries` requests, and only the last
    request received a response."""

    send_time: int
    response_time: int
    is_accepted: bool
    tries: int


@dataclass(frozen=True, slots=True)
class Moves:
    """External influences on the actor. `lives`: numbers of evicted incarnations. `silent`: processes per
    attempt that ended before their first report. `full`: incarnations of the actor in attempts that ended
    with a start on a full disk.
    """

    lives: frozenset[int] = frozenset()
    silent: Mapping[int, int] = field(default_factory=dict[int, int])
    full: Mapping[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True, slots=True)
class History:
    """External actions and observations. `ended`: the times (ns) between which the deciding program exited;
    None if it never did.
    """

    cancel: Cancel | None = None
    exit_interval: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Course:
    """The course of a job without a cancel.

    `lives`: number of incarnations of the actor in each attempt. The outcome is None for a job that would
    never finish.
    """

    lives: tuple[int, ...]
    outcome: Outcome | None


def course(plan: JobPlan, moves: Moves | None = None) -> Course:
    """Return the course of a planned job by the rows of spec/failures#rules."""
    moves = moves or Moves()
    pool = plan.replicas[plan.actor]
    lives = [0]
    retries: Counter[str] = Counter()
    number = 0
    while True:
        end = pool.life(number).end
        moved = number in moves.lives
        full = moves.full.get(len(lives))
        if full != 0:
            number += 1
            lives[-1] += 1
        if lives[-1] == full:
            cause = "the service itself"  # docs/adr/0045
        elif moved or end in _LOST:
            used = lives[-1] + moves.silent.get(len(lives), 0)
            if used <= _RESTARTS and not plan.restart_whole:
                continue
            cause = "lost"
        elif end in _CAUSES:
            cause = _CAUSES[end]
        else:
            return Course(tuple(lives), _outcome_of_end(plan, end))
        if retries[cause] == _RETRIES[cause] or plan.no_retries:
            return Course(tuple(lives), _SPENT.get(cause) or _failure_outcome(plan, end))
        retries[cause] += 1
        lives.append(0)


def expected_outcomes(plan: JobPlan, natural: Outcome | None, history: History) -> tuple[Outcome, ...]:
    """Return all correct outcomes. There are two only if a cancel and an exit were too close to distinguish.
    `natural`: the outcome without the cancel.

    spec/lifecycle#cancel: after an accepted cancel the job ends CANCELLED, unless the primary had already
    exited.
    """
    cancelled = Outcome("CANCELLED", 1, CANCELLED)
    cancel = history.cancel
    if cancel is None:
        assert natural is not None, f"{plan.name} would never end"
        return (natural,)
    if natural is None or history.exit_interval is None:
        return (cancelled,)
    if not cancel.is_accepted:
        # An earlier request may have been accepted, with a lost response.
        return (natural,) if cancel.tries == 1 else (natural, cancelled)
    if history.exit_interval[1] < cancel.send_time:
        return (natural,)
    if history.exit_interval[0] > cancel.response_time:
        return (cancelled,)
    return (natural, cancelled)


def decisive(plan: JobPlan, whole: Course) -> tuple[str, End]:
    """Return the replica whose exit decides the job without a cancel, and that exit."""
    end = plan.replicas[plan.actor].life(sum(whole.lives) - 1).end
    if end is End.SUCCEEDS:
        return "workerpool0-0", end
    return plan.actor, end


def _outcome_of_end(plan: JobPlan, end: End) -> Outcome | None:
    """Return the outcome of an exit that leads to no further incarnation."""
    if end is End.RUNS_ON:
        return None
    if end is End.SUCCEEDS:
        return Outcome("SUCCEEDED")
    if end is End.DRILLED_OOM:
        text = f"The replica {_name(plan)} ran out of memory and exited with a non-zero status of 137."
        return Outcome("FAILED", 3, text)
    return _failure_outcome(plan, end)


def _failure_outcome(plan: JobPlan, end: End) -> Outcome:
    text = f"The replica {_name(plan)} exited with a non-zero status of {_STATUS[end]}."
    return Outcome("FAILED", 3, text)


def _name(plan: JobPlan) -> str:
    pool, _, index = plan.actor.removeprefix("workerpool").partition("-")
    return f"{('master', 'worker')[int(pool)]} {index}" if plan.is_ml else plan.actor
