"""A scenario, lived through: services come and go over one store and one world, and everything is checked on the way."""

import asyncio
import gc
import logging
import random
import traceback
from collections import defaultdict
from collections.abc import Callable
from unittest import mock

from tests.sim import promises, service, virtual
from tests.sim.clients import Clients
from tests.sim.invariants import Books, Taken
from tests.sim.mishaps import Mishaps
from tests.sim.parents import Buckets, CountingAdvisor, LearningAdvisor, doors, fresh_uids
from tests.sim.scenario import DAY, HOUR, SECOND, Scenario
from tests.sim.tally import Tally
from tests.unit.jobs import CREATED
from trainshed.controller import advancing
from trainshed.controller.controller import Controller
from trainshed.core.lifecycle.events import Event
from trainshed.core.lifecycle.machine import step
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.turn import FailurePolicy, Step
from trainshed.core.names import JobUid
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.engines.port import EngineUnavailable
from trainshed.engines.sim.clock import Clock
from trainshed.engines.sim.engine import SimEngine
from trainshed.engines.sim.programs import Life, Script
from trainshed.engines.sim.tidings import Tidings
from trainshed.engines.sim.world import World
from trainshed.store.port import Commit, Ledger, LiveJob
from trainshed.store.sqlite.inline import open_inline

_TIDY = 2 * HOUR
"""ns within which all slots are given back once every job is over."""
_LATENCY = 0.004


class Crash(SystemExit):
    """The service is killed, here and now. (A task lets only SystemExit end the loop.)"""


class Overdue(SystemExit):
    """Some job has not ended by the time by which all must have."""


class Universe:
    """Call `run` once, then look at `wrong`: nothing there means that every invariant held."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock = Clock(CREATED)
        self.world = World(
            self.clock,
            scenario.nodes,
            self._script,
            tidings=Tidings(self.clock, scenario.delays, scenario.seed),
            strict=scenario.policy.strict,
            seed=scenario.seed,
        )
        self.store = open_inline(self._before_commit, self._after_commit)
        self.books = Books(self.world, scenario.policy, scenario.house)
        self.books.families.store = self.store
        self.books.families.notebooks = self.world.notebooks
        self.tally = Tally(worlds=1)
        self.written: list[str] = []
        """What each commit was of, by the doors' methods."""
        self._now: Callable[[], int] = lambda: self.clock.now
        self._doors = doors(
            self.store,
            self._now,
            advisor=self._advisor(),
            metrics=self.world.notebooks,
            buckets=Buckets(*scenario.no_models),
            uids=fresh_uids(),
        )
        self._clients = Clients(
            self.store, self.books, scenario.requests, self._now, self.books.blocks
        )
        self._steps: defaultdict[JobUid, list[Taken]] = defaultdict(list)
        self._commit: Commit | None = None
        self._finished: asyncio.Event | None = None
        self._left_over = False

    @property
    def wrong(self) -> list[str]:
        return [*self.books.families.wrong, *self.books.wrong, *self.world.violations]

    def run(self) -> "Universe":
        """Live the scenario to its end."""
        dice = random.Random(self.scenario.seed)
        mishaps = Mishaps(self.world, dice, self.tally.faults, self.books.blocks)
        mishaps.plan(self.scenario.mishaps)
        for moment in self.scenario.crash_times:
            self.clock.at(moment, self._kill)
        self.clock.at(self._latest_end(), self._overdue)
        errors = _Errors(self.books.wrong, self._look_whether_finished)
        logger = logging.getLogger("trainshed")
        logger.addHandler(errors)
        propagate, logger.propagate = logger.propagate, False
        try:
            with mock.patch.object(advancing, "step", self._step):
                self._live()
        finally:
            logger.removeHandler(errors)
            logger.propagate = propagate
            self.store.close()
        self._count()
        return self

    def _latest_end(self) -> int:
        """ns by which every job is over, whatever happens to it."""
        last = max((request.at for request in self.scenario.requests), default=CREATED)
        longest = sum(job.spec.scheduling.timeout + DAY for job in self.scenario.jobs())
        for work in self.scenario.parents():
            if isinstance(work, TuningJob):
                each = work.spec.trial.scheduling.timeout + DAY
                longest += work.spec.max_trials * each
            elif isinstance(work, Job):
                longest += work.spec.scheduling.timeout + DAY
        return last + longest + 30 * DAY

    def _count(self) -> None:
        self.tally.jobs = len(self.books.jobs)
        self.tally.parents.update(
            f"{type(work).__name__} {work.state}" for work in self.books.families.works.values()
        )
        self.tally.virtual_ns = self.clock.now - CREATED
        self.tally.starts = self.world.starts
        self.tally.steps = self.books.steps
        self.tally.rules = self.books.rules
        self.tally.ends.update(job.state.value for job in self.books.jobs.values())

    # --- services that come and go ---

    def _live(self) -> None:
        while not self.wrong:
            failures: list[BaseException] = []
            try:
                virtual.run(self.clock, self._life(), failures)
            except Crash as end:
                self.tally.killed[str(end)] += 1
                self._after_crash(0)
            except EngineUnavailable:
                self.tally.faults["start failed"] += 1
                self._after_crash(10 * SECOND)
            except (virtual.Deadlock, virtual.Livelock, Overdue) as end:
                alive = [u for u, job in self.books.jobs.items() if not job.state.is_final]
                told = "\n\n".join(self.books.judges[uid].told() for uid in alive[:2])
                alive += self.books.families.alive()
                self.books.wrong.append(f"{end!r}; not over: {alive}\n{told}")
            else:
                self._look_at(failures)
                return
            self._look_at(failures)

    def _look_at(self, failures: list[BaseException]) -> None:
        """A task that ends by an exception of which nobody takes notice is a mistake, whatever it was doing."""
        gc.collect(0)
        for failure in failures:
            trace = "".join(traceback.format_exception(failure))
            self.books.wrong.append(f"a task of the service died unnoticed: {failure!r}\n{trace}")

    def _after_crash(self, least: int) -> None:
        """The world goes on without a service for a while. `least`: ns."""
        self.tally.crashes += 1
        self.world.tidings.detach()
        self._finished = None
        self._steps.clear()
        down = max(least, self.scenario.downs[self.tally.crashes % len(self.scenario.downs)])
        while True:
            try:
                self.clock.advance(self.clock.now + down)
            except Crash:
                continue  # it is dead already
            break
        self.books.blocks(0)

    async def _life(self) -> None:
        """One service, until everything is over."""
        self._finished = asyncio.Event()
        made = service.controller(
            self.store,
            _Watched(self.store.ledger, self._now_committing),
            SimEngine(self.world, _LATENCY),
            self.world.journals,
            self._doors,
            self.scenario,
        )
        await made.start()
        asking = asyncio.create_task(self._ask(made))
        self._look_whether_finished()
        await self._finished.wait()
        await asking
        await self._tidied()
        await made.close()
        accepted = self._clients.accepted
        self.books.wrong += await promises.broken(self.store.reader, self.books, accepted)

    async def _ask(self, made: Controller) -> None:
        await self._clients.ask_all(made)
        self._look_whether_finished()

    async def _tidied(self) -> None:
        by = self.clock.now + _TIDY
        while any(True for _ in self.world.seats()):
            if self.clock.now > by:
                if not self._left_over:
                    # An engine that was out of reach just then: the next start gives back what is left.
                    self._left_over = True
                    raise Crash("with slots left over")
                left = {(seat.job_uid, seat.attempt) for seat in self.world.seats()}
                self.books.wrong.append(f"slots are never given back: {sorted(left)}")
                return
            await asyncio.sleep(5)

    def _kill(self) -> None:
        raise Crash("at a moment")

    def _overdue(self) -> None:
        raise Overdue("not all jobs have ended")

    # --- steps and commits ---

    def _step(self, job: Job, event: Event, now: int, policy: FailurePolicy) -> Step:
        made = step(job, event, now, policy)
        self._steps[job.uid].append(Taken(job, event, now, made.job))
        return made

    def _chain(self, job: Job) -> list[Taken]:
        """The steps that led from the stored job to this one."""
        found: list[Taken] = []
        target = job
        for taken in reversed(self._steps.pop(job.uid, [])):
            if taken.after is not target:
                break
            found.append(taken)
            target = taken.before
        return found[::-1]

    def _now_committing(self, commit: Commit | None) -> None:
        self._commit = commit

    def _before_commit(self, what: str) -> None:
        self.tally.commits += 1
        self.written.append(what)
        if (self.tally.commits, False) in self.scenario.crash_commits:
            raise Crash(f"before {what}")

    def _after_commit(self, what: str) -> None:
        if self._commit is not None and what == "commit":
            self._committed(self._commit)
        if self._clients.creating and what == "create_jobs":
            self._created(*self._clients.creating)
        if (self.tally.commits, True) in self.scenario.crash_commits:
            raise Crash(f"after {what}")
        self._look_whether_finished()

    def _committed(self, commit: Commit) -> None:
        job = commit.job
        if isinstance(job, Job):
            self.books.committed(job, self._chain(job))
        self._created(*(made.job for made in commit.made))
        self.books.families.committed(commit)

    def _created(self, *works: Work) -> None:
        for work in works:
            if isinstance(work, Job):
                self.books.created(work)
            self.books.families.created(work)

    def _script(self, life: Life) -> Script:
        trial = self.books.families.trial_of(life.job_uid)
        if trial is None:
            return self.scenario.script(life)
        return self.scenario.script_of_trial(trial.uid, trial.trial, life)

    def _advisor(self) -> CountingAdvisor:
        return LearningAdvisor(self.scenario.points, self.scenario.bar)

    def _look_whether_finished(self) -> None:
        over = self._clients.are_done and self.books.is_over()
        if self._finished is not None and (over or self.wrong):
            self._finished.set()


class _Watched:
    """The ledger, with what is being committed put where the store's hooks can see it."""

    def __init__(self, ledger: Ledger, committing: Callable[[Commit | None], None]) -> None:
        self._ledger = ledger
        self._committing = committing

    async def acquire(self, owner: str) -> int:
        return await self._ledger.acquire(owner)

    async def load(self, uid: JobUid) -> LiveJob[Work] | None:
        return await self._ledger.load(uid)

    async def load_live(self) -> tuple[LiveJob[Work], ...]:
        return await self._ledger.load_live()

    async def commit(self, epoch: int, commit: Commit) -> int:
        self._committing(commit)
        try:
            return await self._ledger.commit(epoch, commit)
        finally:
            self._committing(None)


class _Errors(logging.Handler):
    """Nothing that the service itself calls an error may happen."""

    def __init__(self, wrong: list[str], noticed: Callable[[], None]) -> None:
        super().__init__(logging.ERROR)
        self._wrong = wrong
        self._noticed = noticed

    def emit(self, record: logging.LogRecord) -> None:
        self._wrong.append(logging.Formatter().format(record))
        self._noticed()
