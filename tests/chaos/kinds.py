"""Random kinds of jobs for a chaos run. Seeded and pure."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from tests.chaos.plans import CancelAt, End, JobPlan, Life, Pace, Pool

_SURVIVED: Final[tuple[End, ...]] = (
    End.DRILLED_KILL,
    End.DRILLED_SEGV,
    End.DRILLED_MAINTENANCE,
    End.DRILLED_PREEMPT,
    End.DRILLED_STOCKOUT,
    End.DRILLED_INTERNAL,
)


class _PlanGenerator:
    """Random numbers and speed of a run. Its methods are the kinds of jobs."""

    def __init__(self, chance: random.Random, pace: Pace) -> None:
        self._chance = chance
        self._pace = pace

    def life(self, end: End, *, waits_for: str | None = None, term: str = "dies", part: float = 1) -> Life:
        seconds = self._chance.uniform(self._pace.shortest, self._pace.longest) * part
        burst = self._chance.choice((1, 1, 1, 4, 25))
        pause = self._chance.choice((0.005, 0.02, 0.05, 0.2)) * (4 if burst > 1 else 1)
        lines = max(3 * burst, min(round(seconds / pause) * burst, 800))
        return Life(lines - lines % burst, burst, pause, end, waits_for, term)

    def one(self, *lives: Life) -> tuple[Pool, ...]:
        return (Pool(1, lives),)

    def gang(self, primary: Life, *worker: Life, replicas: int = 0) -> tuple[Pool, ...]:
        return (Pool(1, (primary,)), Pool(replicas or self._chance.choice((1, 2)), worker))

    def some_term(self) -> str:
        return self._chance.choice(("dies", "dies", "checkpoints", "checkpoints", "ignores"))

    def succeeds(self) -> JobPlan:
        return self.plan(self.one(self.life(End.SUCCEEDS)))

    def gang_succeeds(self) -> JobPlan:
        worker = self._chance.choice((End.SUCCEEDS, End.RUNS_ON))
        return self.plan(self.gang(self.life(End.SUCCEEDS), self.life(worker, term=self.some_term())))

    def fails(self) -> JobPlan:
        return self.plan(self.one(self.life(End.FAILS)))

    def worker_fails(self) -> JobPlan:
        pools = self.gang(self.life(End.RUNS_ON, term=self.some_term()), self.life(End.FAILS), replicas=1)
        return self.plan(pools, actor="workerpool1-0")

    def cancelled_job(self) -> JobPlan:
        lives = self.life(End.RUNS_ON, term=self.some_term())
        pools = self._chance.choice(
            (self.one(lives), self.gang(lives, self.life(End.RUNS_ON, term=self.some_term())))
        )
        return self.plan(pools, cancel=CancelAt.REACHED)

    def cancelled_at_once(self) -> JobPlan:
        return self.plan(self.one(self.life(End.RUNS_ON)), cancel=CancelAt.ONCE)

    def cancelled_near_its_end(self) -> JobPlan:
        """Return a job whose cancel is sent while its program exits."""
        end = self._chance.choice((End.SUCCEEDS, End.FAILS))
        return self.plan(self.one(self.life(end)), cancel=CancelAt.REACHED)

    def crashes_and_succeeds(self) -> JobPlan:
        crashes = [
            self.life(self._chance.choice((End.ABORTS, End.SEGFAULTS, End.EXITS_139)), part=0.4)
            for _ in range(self._chance.choice((1, 1, 2, 3)))
        ]
        last = self.life(End.SUCCEEDS)
        if self._chance.random() < 0.4:
            primary = self.life(End.SUCCEEDS, waits_for="workerpool1-0", term=self.some_term())
            return self.plan(self.gang(primary, *crashes, last, replicas=1), actor="workerpool1-0")
        return self.plan(self.one(*crashes, last))

    def crashes_for_good(self) -> JobPlan:
        return self.plan(self.one(self.life(End.ABORTS, part=0.3)))

    def crashes_without_retries(self) -> JobPlan:
        plan = self.plan(self.one(self.life(End.ABORTS, part=0.5)))
        return replace(plan, no_retries=True)

    def crashes_and_is_cancelled(self) -> JobPlan:
        """Return a job whose cancel is sent while the whole job restarts."""
        pools = self.one(self.life(End.ABORTS, part=0.4), self.life(End.RUNS_ON, term=self.some_term()))
        return self.plan(pools, cancel=CancelAt.REACHED)

    def is_killed(self) -> JobPlan:
        return self.plan(self.one(*self._kills(self._chance.choice((1, 2, 3)))))

    def is_killed_too_often(self) -> JobPlan:
        """Return a job with a sixth kill, which uses a job retry because an attempt has five restarts."""
        return self.plan(self.one(*self._kills(6)))

    def worker_is_killed(self) -> JobPlan:
        primary = self.life(End.SUCCEEDS, waits_for="workerpool1-0", term=self.some_term())
        worker = self._kills(self._chance.choice((1, 2)))
        return self.plan(self.gang(primary, *worker, replicas=1), actor="workerpool1-0")

    def worker_is_killed_and_all_restart(self) -> JobPlan:
        return replace(self.worker_is_killed(), restart_whole=True)

    def shim_hangs(self) -> JobPlan:
        return self.plan(self.one(self.life(End.SHIM_HANGS, part=0.3), self.life(End.SUCCEEDS)))

    def is_drilled(self) -> JobPlan:
        return self.plan(self.one(*self._drills()))

    def is_drilled_too_often(self) -> JobPlan:
        end, count = self._chance.choice(((End.DRILLED_INTERNAL, 3), (End.DRILLED_STOCKOUT, 4)))
        drilled = [self.life(end, part=0.3) for _ in range(count)]
        return self.plan(self.one(*drilled, self.life(End.SUCCEEDS)))

    def worker_is_drilled(self) -> JobPlan:
        primary = self.life(End.SUCCEEDS, waits_for="workerpool1-0", term=self.some_term())
        return self.plan(self.gang(primary, *self._drills(), replicas=1), actor="workerpool1-0")

    def _drills(self) -> tuple[Life, ...]:
        """Draw at most one drill of each kind, so that no budget is exhausted. The last one may be final."""
        ends = self._chance.sample(_SURVIVED, self._chance.choice((1, 2, 3)))
        if self._chance.random() < 0.25:
            ends.append(End.DRILLED_OOM)
        drilled = (self.life(end, part=0.3, term=self.some_term()) for end in ends)
        return (*drilled, self.life(End.SUCCEEDS))

    def _kills(self, count: int) -> tuple[Life, ...]:
        ends = (End.KILLED, End.KILLED, End.SHIM_KILLED)
        killed = (self.life(self._chance.choice(ends), part=0.3) for _ in range(count))
        return (*killed, self.life(End.SUCCEEDS))

    def plan(
        self, pools: tuple[Pool, ...], *, actor: str = "workerpool0-0", cancel: CancelAt = CancelAt.NEVER
    ) -> JobPlan:
        return JobPlan("", "", self._chance.random() < 0.5, pools, actor, cancel)


_Kind = Callable[[_PlanGenerator], JobPlan]

KINDS: Final[Mapping[str, tuple[int, _Kind]]] = {
    "succeeds": (5, _PlanGenerator.succeeds),
    "gang_succeeds": (4, _PlanGenerator.gang_succeeds),
    "fails": (3, _PlanGenerator.fails),
    "worker_fails": (2, _PlanGenerator.worker_fails),
    "cancelled": (4, _PlanGenerator.cancelled_job),
    "cancelled_at_once": (2, _PlanGenerator.cancelled_at_once),
    "cancelled_near_its_end": (2, _PlanGenerator.cancelled_near_its_end),
    "crashes_and_succeeds": (3, _PlanGenerator.crashes_and_succeeds),
    "crashes_for_good": (1, _PlanGenerator.crashes_for_good),
    "crashes_without_retries": (1, _PlanGenerator.crashes_without_retries),
    "crashes_and_is_cancelled": (2, _PlanGenerator.crashes_and_is_cancelled),
    "is_killed": (3, _PlanGenerator.is_killed),
    "is_killed_too_often": (1, _PlanGenerator.is_killed_too_often),
    "worker_is_killed": (2, _PlanGenerator.worker_is_killed),
    "worker_is_killed_and_all_restart": (1, _PlanGenerator.worker_is_killed_and_all_restart),
    "shim_hangs": (1, _PlanGenerator.shim_hangs),
    "is_drilled": (3, _PlanGenerator.is_drilled),
    "is_drilled_too_often": (1, _PlanGenerator.is_drilled_too_often),
    "worker_is_drilled": (1, _PlanGenerator.worker_is_drilled),
}
"""Kinds of jobs and their frequencies."""

_NOT_WITH_DRAINS: Final = (
    # If two replicas are evicted together, the whole job restarts once or twice.
    "worker_is_killed_and_all_restart",
    # If an incarnation is evicted before its line is read, the drill hits the next one.
    "is_drilled",
    "is_drilled_too_often",
    "worker_is_drilled",
)
WITH_DRAINS: Final = tuple(kind for kind in KINDS if kind not in _NOT_WITH_DRAINS)
"""Kinds whose outcome is predictable even if nodes are drained."""


def make_plans(seed: int, count: int, pace: Pace, kinds: tuple[str, ...] = ()) -> list[JobPlan]:
    """Draw `count` jobs, with every kind before any kind repeats. `kinds`: the only kinds, if given."""
    chance = random.Random(seed)
    making = _PlanGenerator(chance, pace)
    chosen = kinds or tuple(KINDS)
    order = [kind for kind in chosen for _ in range(KINDS[kind][0] - 1)]
    plans: list[JobPlan] = []
    while len(plans) < count:
        once = list(chosen)
        chance.shuffle(once)
        chance.shuffle(order)
        for kind in (*once, *order)[: count - len(plans)]:
            plan = KINDS[kind][1](making)
            # Only one of the APIs has a field for it.
            is_ml = plan.is_ml and not (plan.restart_whole or plan.no_retries)
            name = f"chaos_{len(plans):03}"
            plans.append(replace(plan, name=name, kind=kind, is_ml=is_ml))
    return plans
