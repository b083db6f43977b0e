"""The jobs of a chaos run: what each replica does in each of its lives, and what is done to it. Seeded and pure.

At most one replica of a job, its actor, has eventful lives, so that what follows from them does not hang on a race.
"""

import enum
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final


class End(enum.StrEnum):
    """How a life ends. KILLED: its main process, by SIGKILL from outside. SHIM_KILLED: its shim, likewise.
    RUNS_ON: not by itself, but with the job."""

    SUCCEEDS = "exits with 0"
    FAILS = "exits with 7"
    EXITS_139 = "exits with 139"
    ABORTS = "aborts"
    SEGFAULTS = "segfaults"
    KILLED = "is killed"
    SHIM_KILLED = "loses its shim"
    RUNS_ON = "runs on"

    @property
    def is_own(self) -> bool:
        """Whether the program ends itself."""
        return self not in (End.KILLED, End.SHIM_KILLED, End.RUNS_ON)


@dataclass(frozen=True, slots=True)
class Life:
    """`lines` are written, `burst` at a time with `pause` seconds between; then comes the end. A life that is ended
    from outside goes on writing until it is. `waits_for`: a replica that must have succeeded before this life ends.
    `term`: what SIGTERM does to it (`dies`, `checkpoints`, `ignores`)."""

    lines: int
    burst: int
    pause: float
    end: End
    waits_for: str = ""
    term: str = "dies"

    def document(self) -> dict[str, Any]:
        """What the program is told."""
        return {
            "lines": self.lines,
            "burst": self.burst,
            "pause": self.pause,
            "end": self.end.value,
            "ends": self.end.is_own,
            "waits_for": self.waits_for,
            "term": self.term,
        }


@dataclass(frozen=True, slots=True)
class Pool:
    """One worker pool: all its replicas live the same lives; the last one is lived again as often as needed."""

    replicas: int
    lives: tuple[Life, ...]

    def life(self, number: int) -> Life:
        return self.lives[min(number, len(self.lives) - 1)]


class CancelAt(enum.StrEnum):
    """When the job is cancelled: not at all, as soon as it is submitted, or when the primary's first life has
    written its lines."""

    NEVER = "never"
    ONCE = "at once"
    REACHED = "in the middle"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """`name` is the `ml` job id or the Vertex display name. `actor`: the replica whose lives decide."""

    name: str
    kind: str
    is_ml: bool
    pools: tuple[Pool, ...]
    actor: str = "workerpool0-0"
    cancel: CancelAt = CancelAt.NEVER
    restart_whole: bool = False
    no_retries: bool = False

    @property
    def replicas(self) -> dict[str, Pool]:
        return {
            f"workerpool{position}-{index}": pool
            for position, pool in enumerate(self.pools)
            for index in range(pool.replicas)
        }


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a life is, in seconds."""

    shortest: float
    longest: float


class _Making:
    """Chance and pace of one run; its methods are the kinds of jobs."""

    def __init__(self, chance: random.Random, pace: Pace) -> None:
        self._chance = chance
        self._pace = pace

    def life(self, end: End, *, waits_for: str = "", term: str = "dies", part: float = 1) -> Life:
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
        return self.plan(
            self.gang(self.life(End.SUCCEEDS), self.life(worker, term=self.some_term()))
        )

    def fails(self) -> JobPlan:
        return self.plan(self.one(self.life(End.FAILS)))

    def worker_fails(self) -> JobPlan:
        pools = self.gang(
            self.life(End.RUNS_ON, term=self.some_term()), self.life(End.FAILS), replicas=1
        )
        return self.plan(pools, actor="workerpool1-0")

    def cancelled(self) -> JobPlan:
        lives = self.life(End.RUNS_ON, term=self.some_term())
        pools = self._chance.choice(
            (self.one(lives), self.gang(lives, self.life(End.RUNS_ON, term=self.some_term())))
        )
        return self.plan(pools, cancel=CancelAt.REACHED)

    def cancelled_at_once(self) -> JobPlan:
        return self.plan(self.one(self.life(End.RUNS_ON)), cancel=CancelAt.ONCE)

    def cancelled_near_its_end(self) -> JobPlan:
        """The cancel is sent in the moment in which the program ends."""
        end = self._chance.choice((End.SUCCEEDS, End.FAILS))
        return self.plan(self.one(self.life(end)), cancel=CancelAt.REACHED)

    def crashes_and_succeeds(self) -> JobPlan:
        crashes = [
            self.life(
                self._chance.choice((End.ABORTS, End.SEGFAULTS, End.EXITS_139)),
                part=0.4,
            )
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
        """The cancel is sent in the moment in which the whole job is restarted."""
        pools = self.one(
            self.life(End.ABORTS, part=0.4), self.life(End.RUNS_ON, term=self.some_term())
        )
        return self.plan(pools, cancel=CancelAt.REACHED)

    def is_killed(self) -> JobPlan:
        return self.plan(self.one(*self._kills(self._chance.choice((1, 2, 3)))))

    def is_killed_too_often(self) -> JobPlan:
        """Five restarts are one attempt's budget; the sixth kill costs a job retry."""
        return self.plan(self.one(*self._kills(6)))

    def worker_is_killed(self) -> JobPlan:
        primary = self.life(End.SUCCEEDS, waits_for="workerpool1-0", term=self.some_term())
        worker = self._kills(self._chance.choice((1, 2)))
        return self.plan(self.gang(primary, *worker, replicas=1), actor="workerpool1-0")

    def worker_is_killed_and_all_restart(self) -> JobPlan:
        return replace(self.worker_is_killed(), restart_whole=True)

    def _kills(self, count: int) -> tuple[Life, ...]:
        ends = (End.KILLED, End.KILLED, End.SHIM_KILLED)
        killed = (self.life(self._chance.choice(ends), part=0.3) for _ in range(count))
        return (*killed, self.life(End.SUCCEEDS))

    def plan(
        self,
        pools: tuple[Pool, ...],
        *,
        actor: str = "workerpool0-0",
        cancel: CancelAt = CancelAt.NEVER,
    ) -> JobPlan:
        return JobPlan("", "", self._chance.random() < 0.5, pools, actor, cancel)


_Kind = Callable[[_Making], JobPlan]

KINDS: Final[Mapping[str, tuple[int, _Kind]]] = {
    "succeeds": (5, _Making.succeeds),
    "gang_succeeds": (4, _Making.gang_succeeds),
    "fails": (3, _Making.fails),
    "worker_fails": (2, _Making.worker_fails),
    "cancelled": (4, _Making.cancelled),
    "cancelled_at_once": (2, _Making.cancelled_at_once),
    "cancelled_near_its_end": (2, _Making.cancelled_near_its_end),
    "crashes_and_succeeds": (3, _Making.crashes_and_succeeds),
    "crashes_for_good": (1, _Making.crashes_for_good),
    "crashes_without_retries": (1, _Making.crashes_without_retries),
    "crashes_and_is_cancelled": (2, _Making.crashes_and_is_cancelled),
    "is_killed": (3, _Making.is_killed),
    "is_killed_too_often": (1, _Making.is_killed_too_often),
    "worker_is_killed": (2, _Making.worker_is_killed),
    "worker_is_killed_and_all_restart": (1, _Making.worker_is_killed_and_all_restart),
}
"""Kinds of jobs and how often each comes."""


def make_plans(seed: int, count: int, pace: Pace, kinds: tuple[str, ...] = ()) -> list[JobPlan]:
    """`count` jobs, of every kind before one comes again; of these `kinds` alone, if any are named."""
    chance = random.Random(seed)
    making = _Making(chance, pace)
    chosen = kinds or tuple(KINDS)
    order = [kind for kind in chosen for _ in range(KINDS[kind][0] - 1)]
    found: list[JobPlan] = []
    while len(found) < count:
        once = list(chosen)
        chance.shuffle(once)
        chance.shuffle(order)
        for kind in (*once, *order)[: count - len(found)]:
            plan = KINDS[kind][1](making)
            # What only one of the APIs has a field for.
            is_ml = plan.is_ml and not (plan.restart_whole or plan.no_retries)
            name = f"chaos_{len(found):03}"
            found.append(replace(plan, name=name, kind=kind, is_ml=is_ml))
    return found
