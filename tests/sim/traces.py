"""Random lives of jobs, event by event, without a service: any possible reports in any possible order.

`Life` simulates the world for one job and the machine. It only reports events that a port could report for
the job's state, sometimes late, duplicate or outdated.
"""

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.comparison import Judge
from tests.sim.operator_rules import OperatorRules
from tests.unit.jobs import CREATED, job
from trainshed.core.failure.evidence import CLUSTER_LOSSES, Cause
from trainshed.core.job import ExitRecord, Scheduling
from trainshed.core.lifecycle.events import (
    CancelCause,
    CancelRequested,
    CapacityRefused,
    DrillOrdered,
    DrillTriggered,
    Event,
    JobAdmitted,
    NodeLeft,
    Preempted,
    PreparationFailed,
    ReplicaPlaced,
    RuntimePrepared,
)
from trainshed.core.lifecycle.machine import step
from trainshed.core.lifecycle.records import Drill, DrillKind, Job, Replica
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost, ReplicaStarted
from trainshed.core.lifecycle.states import AttemptState, ReplicaState
from trainshed.core.lifecycle.transition import FailurePolicy

SECOND = 10**9
NODES = ("node-0", "node-1", "node-2")
_STEPS = 3_000
_CANCEL_AFTER = 800
"""Steps after which a user cancels: below its rate limit, a reducer may restart forever."""


@dataclass(frozen=True, slots=True)
class Leanings:
    """The character of a random life: weights of a running replica's events, and probabilities of other
    events."""

    ends: tuple[tuple[str, int], ...]
    cancel: float
    stale: float
    leave: float
    preempt: float
    drill: float
    #: The pool of most events; None: no such pool.
    favour: int | None
    #: ns between two events.
    steps: tuple[int, ...]


def draw_leanings(dice: random.Random) -> Leanings:
    """Draw the character of a life with one or two frequent kinds of faults, so that it exhausts budgets."""
    kinds = ("success", "crash", "killed", "lost", "service", "exit", "oom")
    weights = {kind: dice.choice((0, 0, 0, 1)) for kind in kinds}
    weights[dice.choice(("crash", "killed", "lost", "service", "success"))] += 20
    return Leanings(
        tuple(weights.items()),
        cancel=dice.choice((0, 0, 0.005, 0.05)),
        stale=dice.choice((0, 0.1, 0.3)),
        leave=dice.choice((0, 0, 0.05, 0.3)),
        preempt=dice.choice((0, 0, 0.05, 0.3)),
        drill=dice.choice((0, 0, 0.05)),
        favour=dice.choice((None, None, 0, 1, 2)),
        steps=dice.choice(((0, 1, SECOND, 3 * SECOND, 70 * SECOND), (0, SECOND))),
    )


def random_job(dice: random.Random) -> Job:
    """Return a queued job with one to six replicas, sometimes with reducers."""
    workers = dice.choice((0, 0, 1, 2, 4))
    servers = dice.choice((0, 0, 1)) if workers else 0
    scheduling = Scheduling(
        restart_job_on_worker_restart=dice.random() < 0.2, disable_retries=dice.random() < 0.15
    )
    reducers = bool(servers) and dice.random() < 0.6
    return job(1, workers, servers, scheduling=scheduling, reducers=reducers)


class Life:
    """A job from its creation to its end.

    `operator_rules` apply to machine and reference. `policy` sets other rules for the machine, to test that
    the comparison detects them.
    """

    def __init__(
        self, seed: int, policy: FailurePolicy | None = None, operator_rules: OperatorRules | None = None
    ) -> None:
        rules = operator_rules or OperatorRules()
        self.policy = policy or rules.policy
        self.dice = random.Random(seed)
        self.job = random_job(self.dice)
        self._refusals = random.Random(f"refusals {seed}")
        self.judge = Judge.of(self.job, rules)
        self._budgets = random.Random(f"budgets {seed}")
        self._stalls = random.Random(f"stalls {seed}")
        self._takers = random.Random(f"takers {seed}")
        self._taker = self._takers.choice((*_KNOWN, *[Cause.LOST] * len(_KNOWN)))
        self.now = CREATED
        self._leanings = draw_leanings(self.dice)
        if rules.entries:  # for ends that other lives rarely reach
            often = (self._stalls.choice(("exit", "oom", "killed", "crash")), 20)
            self._leanings = dataclasses.replace(self._leanings, ends=(*self._leanings.ends, often))
        self._sent: list[Event] = []
        self._drilled = 0

    def live(self) -> Judge:
        """Run until the job has ended, or machine and reference differ. Raises AssertionError if it never
        ends.
        """
        for number in range(_STEPS):
            if self.job.state.is_final or self.judge.differences:
                break
            self.now += self.dice.choice(self._leanings.steps)
            impatient = number == _CANCEL_AFTER
            self.take(CancelRequested(CancelCause.USER, self.now) if impatient else self._next())
        else:
            raise AssertionError("the job does not end\n" + self.judge.history_text())
        return self.judge

    def take(self, event: Event) -> None:
        self._sent.append(event)
        before = self.job
        self.job = step(before, event, self.now, self.policy).job
        self.judge.observe(before, event, self.now, self.job)

    def _next(self) -> Event:
        dice, lean = self.dice, self._leanings
        if self._sent and dice.random() < lean.stale:
            again = dice.choice(self._sent)
            if not isinstance(again, _ONCE):
                return again
        if dice.random() < lean.cancel:
            at = self.now - dice.choice((0, 0, SECOND))
            return CancelRequested(CancelCause.USER, at)
        if self._drilled < 3 and dice.random() < lean.drill:
            self._drilled += 1
            return DrillOrdered(self._drill())
        return self._by_phase[self.job.phase](self)

    def _drill(self) -> Drill:
        replica = self.dice.choice(self.job.spec.replicas())
        line = self.dice.choice(("", "ready"))
        return Drill(0, self.dice.choice(tuple(DrillKind)), replica, self.now, line)

    def _waiting(self) -> Event:
        self.now = max(self.now, self.job.not_before)
        if self.dice.random() < 0.15:
            return CapacityRefused("no such node")
        return JobAdmitted(tuple((r, self.dice.choice(NODES)) for r in self.job.spec.replicas()))

    def _preparing(self) -> Event:
        dice = self.dice
        if homeless := self._unplaced():
            return self._place_again(homeless)
        if dice.random() < self._leanings.leave:
            return NodeLeft(dice.choice(NODES), "maintenance")
        if dice.random() < 0.08:
            (cause,) = dice.choices((Cause.SERVICE, Cause.PACKAGE, Cause.DATA), (8, 1, 1))
            if cause is not Cause.SERVICE and self._refusals.random() < 0.4:
                cause = Cause.REJECTED
            return PreparationFailed(self.job.attempt, "cannot be prepared", cause)
        return RuntimePrepared(self.job.attempt)

    def _preempt(self) -> Event:
        if self._budgets.random() < 0.3:
            return Preempted("its budget is used up", Cause.BUDGET)
        return Preempted("an on-demand job")

    def _unplaced(self) -> list[Replica]:
        return [r for r in self.job.replicas if not r.node and r.state is ReplicaState.WAITING]

    def _place_again(self, homeless: list[Replica]) -> Event:
        if self.dice.random() < 0.05:
            return CapacityRefused("no such node")
        replica = self.dice.choice(homeless)
        node = self.dice.choice(NODES)
        return ReplicaPlaced(self.job.attempt, replica.id, replica.incarnation, node)

    def _up(self) -> Event:
        dice = self.dice
        if dice.random() < self._leanings.preempt:
            return self._preempt()
        if dice.random() < self._leanings.leave:
            return NodeLeft(dice.choice(NODES), "maintenance")
        if (homeless := self._unplaced()) and dice.random() < 0.5:
            return self._place_again(homeless)
        lines = [d for d in self.job.drills if d.is_armed and d.at_line]
        if lines and dice.random() < 0.3:
            return DrillTriggered(dice.choice(lines).number, self.now)
        placed = [r for r in self.job.replicas if not r.state.is_over and r.node]
        if not placed:
            return self._place_again(homeless)
        favoured = [r for r in placed if r.id.pool == self._leanings.favour]
        replica = dice.choice(favoured if favoured and dice.random() < 0.9 else placed)
        if replica.state is ReplicaState.WAITING and dice.random() < 0.9:
            return ReplicaStarted(self.job.attempt, replica.id, replica.incarnation, self.now)
        if replica.state is ReplicaState.STOPPING:
            return self._obeys(replica)
        return self._ends(replica)

    def _obeys(self, replica: Replica) -> Event:
        """End an evicted replica: by SIGTERM, with a checkpoint, never started, or by an exit just before."""
        dice = self.dice
        kind = dice.choice(("term", "checkpoint", "kill", "gone", "itself"))
        if kind == "itself":
            return self._ends(replica)
        if kind == "gone":
            return self._lose(replica, "never started")
        code = dice.choice((0, 1, 143)) if kind == "checkpoint" else None
        signal = None if code is not None else 15 if kind == "term" else 9
        return self._exit(replica, code, signal, stopped=True)

    def _ends(self, replica: Replica) -> Event:
        dice = self.dice
        kinds, weights = zip(*self._leanings.ends, strict=True)
        kind = dice.choices(kinds, weights)[0]
        match kind:
            case "success":
                return self._exit(replica, 0, None)
            case "crash":
                return self._exit(replica, *dice.choice(_CRASHES))
            case "killed":
                stalled = self._stalls.random() < 0.2
                return self._exit(replica, None, dice.choice((9, 15)), stalled=stalled)
            case "exit":
                return self._exit(replica, *dice.choice(_EXITS))
            case "oom":
                return self._exit(replica, None, 9, oom=True)
            case _:
                return self._lose(replica, "its shim is gone", by_service=kind == "service")

    def _lose(self, replica: Replica, cause: str, *, by_service: bool = False) -> ReplicaLost:
        """End a replica without a record. On a cluster that reports causes, most losses of a life have the
        same cause.
        """
        loss = Cause.LOST
        if self._taker is not loss and not by_service:
            rare = self._takers.random() < 0.03
            loss = self._takers.choice((Cause.LOST, *_KNOWN)) if rare else self._taker
        attempt = self.job.attempt
        return ReplicaLost(attempt, replica.id, replica.incarnation, cause, by_service, loss)

    def _exit(
        self,
        replica: Replica,
        code: int | None,
        signal: int | None,
        *,
        oom: bool = False,
        stopped: bool = False,
        stalled: bool = False,
    ) -> ReplicaExited:
        ended = self.now - self.dice.choice((0, 0, SECOND))
        record = ExitRecord(
            exit_code=code,
            signal=signal,
            oom=oom,
            started=CREATED,
            ended=ended,
            stopped=stopped,
            stalled=stalled,
        )
        return ReplicaExited(self.job.attempt, replica.id, replica.incarnation, record)

    def _stopping(self) -> Event:
        if self.dice.random() < self._leanings.preempt:
            return self._preempt()
        return self._obeys(self.dice.choice([r for r in self.job.replicas if not r.state.is_over]))

    def _over(self) -> Event:
        raise AssertionError("the job is over")

    _by_phase: dict[AttemptState, Callable[["Life"], Event]] = {  # noqa: RUF012 - a table
        AttemptState.WAITING: _waiting,
        AttemptState.PREPARING: _preparing,
        AttemptState.STARTING: _up,
        AttemptState.RUNNING: _up,
        AttemptState.STOPPING: _stopping,
        AttemptState.OVER: _over,
    }


_CRASHES = (*((code, None) for code in (6, 134, 11, 139)), (None, 6), (None, 11))
_EXITS = (*((code, None) for code in (1, 2, 137, 143, 255)), *((None, number) for number in (7, 8, 2)))
_KNOWN = tuple(loss for loss in Cause if loss in CLUSTER_LOSSES)
_ONCE = (JobAdmitted, Preempted, CapacityRefused, NodeLeft, DrillOrdered, PreparationFailed)
"""Events that are reported exactly once."""
