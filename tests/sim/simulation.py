"""Runs a scenario: a sequence of services over one store and one world, with all checks."""

import asyncio
import contextlib
import dataclasses
import gc
import logging
import random
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from unittest import mock

from tests.inline_store import InlineStore, open_inline
from tests.sim import final_checks, service, virtual
from tests.sim.clients import Clients
from tests.sim.engine.clock import Clock, FaultyEventBus
from tests.sim.engine.programs import Life, Script
from tests.sim.engine.world import World
from tests.sim.group_commit import Command, GroupCommits
from tests.sim.invariants import AppliedStep, Books
from tests.sim.parents import CountingAdvisor, LearningAdvisor, fresh_uids, parent_stores
from tests.sim.planned_faults import FaultPlanner
from tests.sim.scenario import DAY, HOUR, SECOND, Scenario
from tests.sim.watched_engine import Demands, WatchedEngine
from tests.unit.jobs import CREATED
from trainshed.controller import steps
from trainshed.controller.controller import Controller
from trainshed.controller.parents import ParentStores
from trainshed.core.errors import RequestError
from trainshed.core.lifecycle.events import Event
from trainshed.core.lifecycle.machine import step
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.replica_events import ReplicaExited
from trainshed.core.lifecycle.transition import FailurePolicy, Step
from trainshed.core.names import JobUid
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.engines.port import EngineEvent, EngineUnavailable, ReplicaReport
from trainshed.store.port import Commit, LiveJob, NewWork
from trainshed.store.sqlite.connections import open_reader
from trainshed.store.sqlite.database import DATABASE_FILE, Store
from trainshed.store.sqlite.jobs import Ledger
from trainshed.store.steps import Reconciler

_TIDY = 2 * HOUR
"""ns after the end of all jobs within which all slots are released."""
_LATENCY = 0.004
_AMBUSHES = 0.2
"""Probability that a request arrives at the end of a program."""


_CREATING = ("create", "create_admitted")
"""The store's calls for a client's submission: one of these at a time."""
_STEPPING = ("commit", "create_admitted")
"""The store's calls that store a step."""


class Crash(SystemExit):
    """Raised to kill the service now. Only SystemExit ends an event loop from within a task."""


class Overdue(SystemExit):
    """Raised if a job has not ended by its deadline."""


class Simulation:
    """Runs one scenario. Call `run` once, then read `wrong`: it is empty if every invariant holds."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock = Clock(CREATED)
        self.world = World(
            self.clock,
            scenario.nodes,
            self._script,
            bus=FaultyEventBus(self.clock, scenario.delays, scenario.seed),
            strict=scenario.policy.strict,
            seed=scenario.seed,
        )
        self.store: Store = open_inline(self._before_commit, self._after_commit)
        self._group: GroupCommits | None = None
        if scenario.disk is not None:
            self._group = GroupCommits(
                self.clock,
                scenario.seed,
                scenario.disk,
                arrived=self._handle_arrival,
                committing=lambda whats: self._before_commit(", ".join(whats)),
                committed=self._group_committed,
            )
        self.books = Books(self.world, scenario.policy, scenario.operator_rules)
        self.books.families.store = self.store
        self.books.families.notebooks = self.world.notebooks
        self.books.clock_is_true = not scenario.wall_steps
        self._demands = Demands()
        self._dice = random.Random(f"ambushes {scenario.seed}")
        self._ambushes: set[asyncio.Task[None]] = set()
        #: Counts of events, by name.
        self.tally = Counter[str](worlds=1)
        #: The store's methods in each commit.
        self.written: list[str] = []
        self._learned, self._uids = self._advisor(), fresh_uids()
        self._clients = Clients(self.books, scenario.requests)
        self._steps: defaultdict[JobUid, list[AppliedStep]] = defaultdict(list)
        self._commit: Commit | None = None
        #: By command of the writer: its contents, or their factory.
        self._under_way: dict[int, tuple[Commit | None, tuple[Work, ...]]] = {}
        self._finished: asyncio.Event | None = None
        self._left_over = False

    @property
    def wrong(self) -> list[str]:
        return [*self.books.families.wrong, *self.books.wrong, *self.world.violations]

    def run(self) -> "Simulation":
        """Run the scenario to its end."""
        dice = random.Random(self.scenario.seed)
        planner = FaultPlanner(self.world, dice, self.tally, self.books.blocks)
        planner.plan(self.scenario.planned_faults)
        for moment in self.scenario.crash_times:
            self.clock.at(moment, self._kill)
        for moment, ahead_by in self.scenario.wall_steps:
            self.clock.at(moment, lambda ahead_by=ahead_by: self._set_wall(ahead_by))
        self.clock.at(self._latest_end(), self._overdue)
        errors = _Errors(self.books.wrong, self._finish_if_done)
        logger = logging.getLogger("trainshed")
        logger.addHandler(errors)
        propagate, logger.propagate = logger.propagate, False
        try:
            with mock.patch.object(steps, "step", self._step):
                self._live()
        finally:
            logger.removeHandler(errors)
            logger.propagate = propagate
            self.store.close()
            if self._group is not None:
                self._group.close()
        if not self.wrong:
            self.books.check_usage()
        self._count()
        return self

    def _latest_end(self) -> int:
        """Return the ns by which every job has ended in any case."""
        last = max((request.at for request in self.scenario.requests), default=CREATED)
        longest = sum(job.spec.scheduling.timeout + DAY for job in self.scenario.jobs())
        for work in self.scenario.parents():
            if isinstance(work, TuningJob):
                latest = work.spec.trial.scheduling.timeout + DAY
                longest += work.spec.max_trials * latest
            elif isinstance(work, Job):
                longest += work.spec.scheduling.timeout + DAY
        set_back = sum(-ahead_by for _, ahead_by in self.scenario.wall_steps)
        return last + longest + 30 * DAY + 10 * set_back

    def _count(self) -> None:
        works = (*self.books.jobs.values(), *self.books.families.works.values())
        self.tally.update(f"{type(work).__name__} {work.state}" for work in works)
        self.tally.update({f"rule {rule}": n for rule, n in self.books.rules.items()})
        self.tally["days"] = (self.clock.now - CREATED) // DAY
        self.tally["programs"] = self.world.starts
        self.tally["steps compared"] = self.books.steps
        if self._group is not None:
            self.tally["real commits"] = self._group.batches
            self.tally["real commits of several writes"] = self._group.company

    # --- services ---

    def _live(self) -> None:
        while not self.wrong:
            failures: list[BaseException] = []
            try:
                virtual.run(self.clock, self._life(), failures)
            except Crash as end:
                self.tally[f"killed {end}"] += 1
                self._after_crash(0)
            except EngineUnavailable:
                self.tally["start failed"] += 1
                self._after_crash(10 * SECOND)
            except (virtual.Deadlock, virtual.Livelock, Overdue) as end:
                alive = [u for u, job in self.books.jobs.items() if not job.state.is_final]
                stories = "\n\n".join(self.books.judges[uid].history_text() for uid in alive[:2])
                alive += self.books.families.alive()
                self.books.wrong.append(f"{end!r}; not over: {alive}\n{stories}")
            else:
                self._record_failures(failures)
                return
            # The client that should receive the rejection's record died with the service.
            self._record_failures([error for error in failures if not isinstance(error, RequestError)])

    def _record_failures(self, failures: list[BaseException]) -> None:
        """Record unhandled exceptions of tasks as errors."""
        gc.collect(0)
        for failure in failures:
            trace = "".join(traceback.format_exception(failure))
            self.books.wrong.append(f"a task of the service died unnoticed: {failure!r}\n{trace}")

    def _after_crash(self, least: int) -> None:
        """Advance the world for a while without a service. `least`: ns."""
        self.tally["crashes"] += 1
        self.world.bus.detach()
        if self._group is not None:
            self._group.abandon()
        self._under_way.clear()
        self._ambushes.clear()
        self._finished = None
        self._steps.clear()
        down = max(least, self.scenario.downs[self.tally["crashes"] % len(self.scenario.downs)])
        while True:
            try:
                self.clock.advance(self.clock.now + down)
            except Crash:
                continue  # it is already dead
            break
        self.books.blocks(0)

    async def _life(self) -> None:
        """Run one service until all jobs have ended."""
        self._finished = asyncio.Event()
        if self._group is not None:
            self.store.close()
            self.store = self.books.families.store = self._group.open()
        made = service.controller(
            self.store,
            _Watched(self.store.ledger, self._now_committing),
            WatchedEngine(
                self.world, _LATENCY, self.books, self._demands, lambda event: self._before_event(made, event)
            ),
            self.world.journals,
            self._stores(),
            self.scenario,
        )
        made.add_reconcilers(self._reconcilers())
        await made.start()
        asking = asyncio.create_task(self._ask(made))
        self._finish_if_done()
        await self._finished.wait()
        await asyncio.gather(asking, *self._ambushes)
        await self._wait_until_released()
        await made.close()
        if counted := made.load().jobs:
            self.books.wrong.append(f"all is over, and jobs are counted: {counted}")
        accepted = self._clients.accepted
        self.books.wrong += await final_checks.unmet_requests(self.store.reader, self.books, accepted)
        self.books.wrong += await self._left_intents()

    def _reconcilers(self) -> Mapping[type[Work], Reconciler]:
        """Return the reconcilers of additions for the next service."""
        return {}

    def _stores(self) -> ParentStores:
        return parent_stores(
            self.store,
            lambda: self.clock.wall,
            advisor=self._learned,
            reported=self.world.notebooks.measurements,
            empty=self.scenario.no_models,
            uids=self._uids,
        )

    def _before_event(self, made: Controller, event: EngineEvent) -> None:
        """Handle an event just before the service receives it. With a slow writer, send a request just after
        the exit of a program, so that the store accepts it between the service's read and commit."""
        if (
            self._group is None
            or not isinstance(event, ReplicaReport)
            or not isinstance(event.event, ReplicaExited)
        ):
            return
        roll = self._dice.random()
        if roll < _AMBUSHES and event.job_uid in self.books.jobs:
            asking = self._clients.ambush(made, self.store, event.job_uid, cancels=roll < _AMBUSHES / 5)
            self._ambushes.add(task := asyncio.create_task(asking))
            task.add_done_callback(self._ambushes.discard)

    async def _left_intents(self) -> list[str]:
        """Return accepted requests that were not applied, although their job had not ended before."""
        sql = "SELECT job_uid, kind FROM intents ORDER BY job_uid"
        if isinstance(self.store, InlineStore):
            left = self.store.read_now(lambda connection: connection.execute(sql).fetchall())
        else:
            assert self._group is not None
            with contextlib.closing(open_reader(self._group.directory / DATABASE_FILE)) as reader:
                left = reader.execute(sql).fetchall()
        return [f"job {uid} is over, and its {kind} was never taken in" for uid, kind in left]

    async def _ask(self, made: Controller) -> None:
        await self._clients.ask_all(made, self.store)
        self._finish_if_done()

    async def _wait_until_released(self) -> None:
        by = self.clock.now + _TIDY
        while any(True for _ in self.world.sim_slots()):
            if self.clock.now > by:
                if not self._left_over:
                    # The engine was unreachable: the next start releases the rest.
                    self._left_over = True
                    raise Crash("with slots left over")
                left = {(sim_slot.job_uid, sim_slot.attempt) for sim_slot in self.world.sim_slots()}
                self.books.wrong.append(f"slots are never given back: {sorted(left)}")
                return
            await asyncio.sleep(5)

    def _kill(self) -> None:
        raise Crash("at a moment")

    def _set_wall(self, ahead_by: int) -> None:
        self.tally["clock set"] += 1
        # Waiting tasks with a time limit wait longer.
        self.books.blocks(abs(ahead_by - (self.clock.wall - self.clock.now)) + 2 * HOUR)
        self.clock.set_wall(ahead_by)

    def _overdue(self) -> None:
        raise Overdue("not all jobs have ended")

    # --- steps and commits ---

    def _step(self, job: Job, event: Event, now: int, policy: FailurePolicy) -> Step[Job]:
        made = step(job, event, now, policy)
        self._steps[job.uid].append(AppliedStep(job, event, now, made.job))
        return made

    def _chain(self, job: Job) -> list[AppliedStep]:
        """Return the steps from the stored job to this one."""
        chain: list[AppliedStep] = []
        target = job
        for taken in reversed(self._steps.pop(job.uid, [])):
            if taken.after is not target:
                break
            chain.append(taken)
            target = taken.before
        return chain[::-1]

    def _now_committing(self, commit: Commit | None) -> None:
        self._commit = commit

    def _before_commit(self, what: str) -> None:
        self.tally["commits"] += 1
        self.written.append(what)
        if (self.tally["commits"], False) in self.scenario.crash_commits:
            raise Crash(f"before {what}")

    def _after_commit(self, what: str) -> None:
        if self._clients.creating and what in _CREATING:
            self._handle_creation(*self._clients.creating)
        if self._commit is not None and what in _STEPPING:
            self._handle_commit(self._commit)
        if (self.tally["commits"], True) in self.scenario.crash_commits:
            raise Crash(f"after {what}")
        self._finish_if_done()

    def _handle_arrival(self, command: Command) -> None:
        """Handle a write that the writer has received."""
        self._under_way[id(command)] = (
            self._commit if command.what in _STEPPING else None,
            self._clients.creating if command.what in _CREATING else (),
        )

    def _group_committed(self, stored: list[Command]) -> None:
        """Handle durable writes before the writer has notified their callers."""
        for command in stored:
            commit, made = self._under_way.pop(id(command))
            self._handle_creation(*made)
            if commit is not None:
                self._handle_commit(commit)
        if (self.tally["commits"], True) in self.scenario.crash_commits:
            raise Crash(f"after {', '.join(command.what for command in stored)}")
        self._finish_if_done()

    def _handle_commit(self, commit: Commit) -> None:
        job = commit.job
        if isinstance(job, Job):
            now = self.clock.now
            for key in self._demands.late(job.uid, now, self.books.blocked_until):
                self.books.wrong.append(f"job {job.uid}: {key} was to be started, and never was")
            self._demands.record_commit(job, now)
            self.books.check_commit(job, self._chain(job))
            self.books.uses[job.uid] += commit.uses
        self._handle_creation(*(made.job for made in commit.made))
        self.books.families.check_commit(commit)

    def _handle_creation(self, *works: Work) -> None:
        for work in works:
            if isinstance(work, Job):
                self.books.record_creation(work)
            self.books.families.record_creation(work)

    def _script(self, life: Life) -> Script:
        trial = self.books.families.trial_of(life.job_uid)
        if trial is None:
            return self.scenario.script(life)
        return self.scenario.script_of_trial(trial.uid, trial.trial, life)

    def _advisor(self) -> CountingAdvisor:
        return LearningAdvisor(self.scenario.points, self.scenario.bar)

    def _finish_if_done(self) -> None:
        over = self._clients.are_done and self.books.is_over()
        if self._finished is not None and (over or self.wrong):
            self._finished.set()


class _Watched(Ledger):
    """The ledger, with the current commit visible to the store's hooks."""

    def __init__(self, ledger: Ledger, committing: Callable[[Commit | None], None]) -> None:
        self._ledger = ledger
        self._committing = committing

    async def acquire(self, owner: str) -> int:
        return await self._ledger.acquire(owner)

    async def create_admitted(self, epoch: int, made: NewWork) -> None:
        self._committing(Commit(made.job, 0, made.timeline))
        try:
            await self._ledger.create_admitted(epoch, made)
        finally:
            self._committing(None)

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
    """A log handler that records every error of the service as a violation."""

    def __init__(self, wrong: list[str], noticed: Callable[[], None]) -> None:
        super().__init__(logging.ERROR)
        self._wrong = wrong
        self._noticed = noticed

    def emit(self, record: logging.LogRecord) -> None:
        self._wrong.append(logging.Formatter().format(record))
        self._noticed()


def simulate(
    scenario: Scenario, *crashes: tuple[int, bool], simulation_class: type[Simulation] = Simulation
) -> Simulation:
    """Return a scenario that ran without violations. `crashes`: replaces its `crash_commits`."""
    if crashes:
        scenario = dataclasses.replace(scenario, crash_commits=crashes)
    made = simulation_class(scenario).run()
    assert not made.wrong, f"seed {scenario.seed}, killed at {crashes}: {made.wrong[0]}"
    return made
