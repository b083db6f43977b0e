"""What is to happen in one simulated world: nodes, jobs and their programs, requests, mishaps, crashes.
Values only."""

import random
from dataclasses import dataclass

from msgspec.structs import replace

from tests.sim.engine.clock import Delays
from tests.sim.engine.programs import Life, OnTerm, Reports, Script
from tests.sim.house import House
from tests.sim.tuning_jobs import METRIC
from tests.unit.jobs import SECOND
from trainshed.core.capacity import Node, QuotaKey
from trainshed.core.lifecycle.records import Drill, Job
from trainshed.core.names import JobUid
from trainshed.core.works import Work
from trainshed.scheduler.model import Policy

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


@dataclass(frozen=True, slots=True)
class Submit:
    at: int
    job: Job


@dataclass(frozen=True, slots=True)
class SubmitParent:
    """A tuning job, or a pipeline and the work behind it, stored in one step."""

    at: int
    works: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class CancelTrial:
    """The job of a trial is cancelled by hand, if there is one by then."""

    at: int
    uid: JobUid
    trial: int


@dataclass(frozen=True, slots=True)
class Cancel:
    at: int
    uid: JobUid


@dataclass(frozen=True, slots=True)
class Relabel:
    at: int
    uid: JobUid


@dataclass(frozen=True, slots=True)
class OrderDrill:
    at: int
    uid: JobUid
    drill: Drill


@dataclass(frozen=True, slots=True)
class DrainNode:
    at: int
    node: str
    drained: bool


@dataclass(frozen=True, slots=True)
class SetQuota:
    at: int
    key: QuotaKey
    limit: float | None


Request = Submit | SubmitParent | Cancel | CancelTrial | Relabel | OrderDrill | DrainNode | SetQuota


@dataclass(frozen=True, slots=True)
class Mishap:
    """`kind`: a word of `mishaps`. `lasts`: ns, for those that end."""

    at: int
    kind: str
    node: str = ""
    lasts: int = 0


@dataclass(frozen=True, slots=True)
class Character:
    """How the programs of one job behave: they work for about `runs` ns, and each life goes wrong in its way
    with the chance given for it. `hangs`: it does nothing any more when its work is half done. `prints`:
    lines in each life. `flaky`: its servers fall over every second. `measures`: how often each life of a
    trial reports its metric, `mute`: with what chance it reports another one."""

    runs: int
    crash: float = 0.0
    exit: float = 0.0
    killed: float = 0.0
    oom: float = 0.0
    start_fails: float = 0.0
    on_term: OnTerm = OnTerm.DIE
    term_takes: int = 0
    hangs: float = 0.0
    prints: int = 0
    flaky: bool = False
    measures: int = 0
    mute: float = 0.0


_AT_ONCE = Delays()
_OWN = House()


@dataclass(frozen=True, slots=True)
class Scenario:
    """`crash_commits`: the service is killed at each of these commits, counted over all its lives, before it
    where the flag is False and after it where it is True. `crash_times`: and at these moments. `downs`: ns
    until the next life begins. `is_crowd`: the
    bound of `crowds` holds in it. `points`: how many there are to try in each study, None: any number. `bar`:
    what trials are stopped early below. `no_models`: places at which programs leave no model. `disk`: the
    store's real writer is used, and its disk takes so many ns at most; None: each write is done at once.
    `wall_steps`: at these moments the wall clock is set to so many ns from the true time."""

    seed: int
    nodes: tuple[Node, ...]
    policy: Policy
    requests: tuple[Request, ...]
    characters: dict[JobUid, Character]
    mishaps: tuple[Mishap, ...] = ()
    delays: Delays = _AT_ONCE
    crash_commits: tuple[tuple[int, bool], ...] = ()
    crash_times: tuple[int, ...] = ()
    downs: tuple[int, ...] = (0,)
    house: House = _OWN
    is_crowd: bool = False
    points: int | None = None
    bar: float = 0.0
    no_models: tuple[str, ...] = ()
    disk: int | None = None
    wall_steps: tuple[tuple[int, int], ...] = ()

    def script(self, life: Life) -> Script:
        """What one incarnation does; the same whenever it is asked."""
        return self._script(life, self.characters[life.job_uid])

    def script_of_trial(self, tuning: JobUid, trial: int, life: Life) -> Script:
        """The same for one of a trial's job, whatever uid that was given: each trial has its own luck."""
        character = self.characters[tuning]
        life = replace(life, job_uid=JobUid(tuning * 1000 + trial))
        script = self._script(life, character)
        dice = random.Random(f"measures {self.seed} {life}")
        metric = "loss" if dice.random() < character.mute else METRIC
        moments = sorted(dice.randrange(script.runs) for _ in range(character.measures))
        reports = (
            Reports(at, metric, round(dice.random(), 3), n) for n, at in enumerate(moments, 1)
        )
        return replace(script, reports=tuple(reports))

    def _script(self, life: Life, character: Character) -> Script:
        script = self._work(life, character)
        dice = random.Random(f"more of {self.seed} {life}")
        if life.replica.pool == 2 and character.flaky:
            return replace(script, runs=SECOND, code=1)
        if dice.random() < character.hangs:
            script = replace(script, runs=script.runs // 2 + 1, hangs=True)
        moments = sorted(dice.randrange(script.runs) for _ in range(character.prints))
        return replace(script, prints=tuple(moments))

    def _work(self, life: Life, character: Character) -> Script:
        dice = random.Random(f"{self.seed} {life}")
        runs = max(1, int(character.runs * dice.uniform(0.5, 1.5)))
        if life.replica.pool == 2:
            runs *= 100  # servers run until they are stopped
        script = Script(runs, on_term=character.on_term, term_takes=character.term_takes)
        roll = dice.random()
        if roll < (limit := character.start_fails):
            return replace(script, start_fails=True)
        early = int(runs * dice.random() ** 2) + 1
        if roll < (limit := limit + character.crash):
            return replace(script, runs=early, signal=dice.choice((6, 11)))
        if roll < (limit := limit + character.exit):
            return replace(script, runs=early, code=dice.choice((1, 2, 143)))
        if roll < (limit := limit + character.killed):
            return replace(script, runs=early, signal=9)
        if roll < limit + character.oom:
            return replace(script, runs=early, oom=True)
        return script

    def parents(self) -> tuple[Work, ...]:
        """Tuning jobs and pipelines, with the works behind them."""
        return tuple(w for r in self.requests if isinstance(r, SubmitParent) for w in r.works)

    def jobs(self) -> tuple[Job, ...]:
        """Those that users submit themselves."""
        return tuple(r.job for r in self.requests if isinstance(r, Submit))
