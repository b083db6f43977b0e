"""A scenario of a simulated world: nodes, jobs and their programs, requests, faults, crashes. Values only."""

import random
from dataclasses import dataclass

from msgspec.structs import replace

from tests.sim.engine.clock import Delays
from tests.sim.engine.programs import Life, OnTerm, Reports, Script
from tests.sim.operator_rules import OperatorRules
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
    """A tuning job, or a pipeline and its work, stored in one step."""

    at: int
    works: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class CancelTrial:
    """A user cancels the job of a trial, if it exists by then."""

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
    is_drained: bool


@dataclass(frozen=True, slots=True)
class SetQuota:
    at: int
    key: QuotaKey
    limit: float | None


Request = Submit | SubmitParent | Cancel | CancelTrial | Relabel | OrderDrill | DrainNode | SetQuota


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault at a planned time. `kind`: a case of `FaultPlanner`. `lasts`: duration of temporary faults in
    ns."""

    at: int
    kind: str
    node: str = ""
    lasts: int = 0


@dataclass(frozen=True, slots=True)
class Character:
    """The behavior of a job's programs.

    They work for about `runs` ns. The other fields are probabilities of faults in each incarnation. `hangs`:
    the program hangs after half of its work. `prints`: lines in each incarnation.
    `flaky`: its servers crash every second. `measures`: reports of a trial's metric per incarnation. `mute`:
    probability of another metric instead.
    """

    runs: int
    crash: float = 0.0
    exit: float = 0.0
    kill: float = 0.0
    oom: float = 0.0
    start_fails: float = 0.0
    on_term: OnTerm = OnTerm.DIE
    term_takes: int = 0
    hangs: float = 0.0
    prints: int = 0
    flaky: bool = False
    measures: int = 0
    mute: float = 0.0


_NO_DELAYS = Delays()
_OWN = OperatorRules()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario.

    `crash_commits`: the service is killed at these commits, counted over all its incarnations: before it if
    the flag is False, after it if True. `crash_times`: further kills. `downs`: ns until each restart.
    `is_crowd`: `tests.sim.starvation` checks waiting times. `points`: number of points in each study; None:
    unlimited. `bar`: early stopping below this value. `no_models`: locations without a model. `disk`: uses
    the store's real writer with this maximum latency in ns; None: each write is immediate. `wall_steps`:
    offsets of the wall clock in ns, by time.
    """

    seed: int
    nodes: tuple[Node, ...]
    policy: Policy
    requests: tuple[Request, ...]
    characters: dict[JobUid, Character]
    planned_faults: tuple[PlannedFault, ...] = ()
    delays: Delays = _NO_DELAYS
    crash_commits: tuple[tuple[int, bool], ...] = ()
    crash_times: tuple[int, ...] = ()
    downs: tuple[int, ...] = (0,)
    operator_rules: OperatorRules = _OWN
    is_crowd: bool = False
    points: int | None = None
    bar: float = 0.0
    no_models: tuple[str, ...] = ()
    disk: int | None = None
    wall_steps: tuple[tuple[int, int], ...] = ()

    def script(self, life: Life) -> Script:
        """Return the script of an incarnation: the same for every call."""
        return self._script(life, self.characters[life.job_uid])

    def script_of_trial(self, tuning: JobUid, trial: int, life: Life) -> Script:
        """Return the script of a trial's job, whatever its uid. Each trial has its own random numbers."""
        character = self.characters[tuning]
        life = replace(life, job_uid=JobUid(tuning * 1000 + trial))
        script = self._script(life, character)
        dice = random.Random(f"measures {self.seed} {life}")
        metric = "loss" if dice.random() < character.mute else METRIC
        moments = sorted(dice.randrange(script.runs) for _ in range(character.measures))
        reports = (Reports(at, metric, round(dice.random(), 3), n) for n, at in enumerate(moments, 1))
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
        if roll < (limit := limit + character.kill):
            return replace(script, runs=early, signal=9)
        if roll < limit + character.oom:
            return replace(script, runs=early, oom=True)
        return script

    def parents(self) -> tuple[Work, ...]:
        """Tuning jobs and pipelines, with their works."""
        return tuple(w for r in self.requests if isinstance(r, SubmitParent) for w in r.works)

    def jobs(self) -> tuple[Job, ...]:
        """Jobs that users submit."""
        return tuple(r.job for r in self.requests if isinstance(r, Submit))
