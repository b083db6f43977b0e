"""A scenario, lived through: services come and go over one store and one world, and everything is checked on the way."""

import asyncio
import gc
import logging
import random
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import assert_never
from unittest import mock

from tests.sim import service, virtual
from tests.sim.invariants import Books, Taken
from tests.sim.scenario import (
    DAY,
    HOUR,
    Cancel,
    DrainNode,
    Mishap,
    OrderDrill,
    Relabel,
    Request,
    Scenario,
    SetQuota,
    Submit,
)
from tests.unit.jobs import CREATED
from trainshed.controller import controller as control
from trainshed.controller.controller import Controller
from trainshed.core.errors import AlreadyExists, FailedPrecondition
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, Event
from trainshed.core.lifecycle.machine import step
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.lifecycle.turn import FailurePolicy, Step
from trainshed.core.names import JobName, JobUid
from trainshed.engines.port import EngineUnavailable, Fault
from trainshed.engines.sim.clock import Clock
from trainshed.engines.sim.engine import SimEngine
from trainshed.engines.sim.tidings import Tidings
from trainshed.engines.sim.world import World
from trainshed.store.port import Commit, Ledger, LiveJob, NodeDrain
from trainshed.store.sqlite.inline import open_inline

SECOND = 10**9
_TIDY = 2 * HOUR
"""ns within which all slots are given back once every job is over."""
_LATENCY = 0.004
_SIGHTINGS = (
    "replica_started",
    "replica_exited",
    "running",
    "cancel_requested",
    "drill_ordered",
)
"""Entries that give the time at which something happened or was asked for, of which the controller may hear later."""


class Crash(SystemExit):
    """The service is killed, here and now. (A task lets only SystemExit end the loop.)"""


class Overdue(SystemExit):
    """Some job has not ended by the time by which all must have."""


@dataclass(slots=True)
class Tally:
    """What a run was made of."""

    virtual_ns: int = 0
    jobs: int = 0
    commits: int = 0
    steps: int = 0
    crashes: int = 0
    starts: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    ends: Counter[str] = field(default_factory=Counter[str])


class _Watched:
    """The ledger, with what is being committed put where the store's hooks can see it."""

    def __init__(self, ledger: Ledger, committing: Callable[[Commit | None], None]) -> None:
        self._ledger = ledger
        self._committing = committing

    async def acquire(self, owner: str) -> int:
        return await self._ledger.acquire(owner)

    async def load(self, uid: JobUid) -> LiveJob | None:
        return await self._ledger.load(uid)

    async def load_live(self) -> tuple[LiveJob, ...]:
        return await self._ledger.load_live()

    async def commit(self, epoch: int, commit: Commit) -> int:
        self._committing(commit)
        try:
            return await self._ledger.commit(epoch, commit)
        finally:
            self._committing(None)


class Universe:
    """Call `run` once, then look at `wrong`: nothing there means that every invariant held."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock = Clock(CREATED)
        self.world = World(
            self.clock,
            scenario.nodes,
            scenario.script,
            tidings=Tidings(self.clock, scenario.delays, scenario.seed),
            strict=scenario.policy.strict,
            seed=scenario.seed,
        )
        self.store = open_inline(self._before_commit, self._after_commit)
        self.books = Books(self.world, scenario.policy)
        self.tally = Tally(jobs=len(scenario.jobs()))
        self._dice = random.Random(scenario.seed)
        self._pending = list(scenario.requests)
        self._names: dict[JobUid, JobName] = {s.uid: s.name for s in scenario.jobs()}
        self._accepted: dict[JobUid, int] = {}
        self._acknowledged: set[JobUid] = set()
        self._steps: defaultdict[JobUid, list[Taken]] = defaultdict(list)
        self._commit: Commit | None = None
        self._creating: Job | None = None
        self._finished: asyncio.Event | None = None
        self._left_over = False
        self._last_request = max((r.at for r in self._pending), default=CREATED)

    @property
    def wrong(self) -> list[str]:
        return [*self.books.wrong, *self.world.violations]

    def run(self) -> "Universe":
        """Live the scenario to its end."""
        for mishap in self.scenario.mishaps:
            self.clock.at(mishap.at, lambda mishap=mishap: self._befall(mishap))
        for moment in self.scenario.crash_times:
            self.clock.at(moment, self._kill)
        longest = sum(job.spec.scheduling.timeout + DAY for job in self.scenario.jobs())
        self.clock.at(self._last_request + longest + 30 * DAY, self._overdue)
        errors = _Errors(self.books.wrong)
        logger = logging.getLogger("trainshed")
        logger.addHandler(errors)
        propagate, logger.propagate = logger.propagate, False
        try:
            with mock.patch.object(control, "step", self._step):
                self._live()
        finally:
            logger.removeHandler(errors)
            logger.propagate = propagate
            self.store.close()
        self.tally.virtual_ns = self.clock.now - CREATED
        self.tally.starts = self.world.starts
        self.tally.steps = self.books.steps
        self.tally.ends.update(job.state.value for job in self.books.jobs.values())
        return self

    # --- services that come and go ---

    def _live(self) -> None:
        while not self.wrong:
            failures: list[BaseException] = []
            try:
                virtual.run(self.clock, self._life(), failures)
            except (Crash, EngineUnavailable) as end:
                self.tally.crashes += 1
                self.tally.faults[f"crash {end}" if isinstance(end, Crash) else "start failed"] += 1
                self._after_crash(0 if isinstance(end, Crash) else 10 * SECOND)
            except (virtual.Deadlock, virtual.Livelock, Overdue) as end:
                alive = [u for u, job in self.books.jobs.items() if not job.state.is_final]
                told = "\n\n".join(self.books.judges[uid].told() for uid in alive[:2])
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
        self._block(0)

    async def _life(self) -> None:
        self._finished = asyncio.Event()
        engine = SimEngine(self.world, _LATENCY)
        made = service.controller(
            self.store,
            _Watched(self.store.ledger, self._now_committing),
            engine,
            lambda: self.clock.now,
            self.scenario.policy,
            self.scenario.seed,
        )
        await made.start()
        clients = asyncio.create_task(self._clients(made))
        self._look_whether_finished()
        await self._finished.wait()
        await clients
        await self._tidied()
        await made.close()
        await self._check_store()

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

    def _step(self, job: Job, event: Event, now: int, policy: FailurePolicy | None = None) -> Step:
        made = step(job, event, now, policy or FailurePolicy())
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

    # --- commits ---

    def _now_committing(self, commit: Commit | None) -> None:
        self._commit = commit

    def _before_commit(self, what: str) -> None:
        self.tally.commits += 1
        if (self.tally.commits, False) in self.scenario.crash_commits:
            raise Crash(f"before {what}")

    def _after_commit(self, what: str) -> None:
        if self._commit is not None and what == "commit":
            job = self._commit.job
            self.books.committed(job, self._chain(job))
        if self._creating is not None and what == "create_job":
            self.books.created(self._creating)
        if (self.tally.commits, True) in self.scenario.crash_commits:
            raise Crash(f"after {what}")
        self._look_whether_finished()

    def _look_whether_finished(self) -> None:
        if self._finished is not None and (
            self.wrong or (not self._pending and self.books.is_over())
        ):
            self._finished.set()

    # --- requests ---

    async def _clients(self, made: Controller) -> None:
        """Requests in their order; one that was not answered is made again of the next service."""
        while self._pending and not self.wrong:
            request = self._pending[0]
            await asyncio.sleep(max(0, request.at - self.clock.now) / SECOND)
            await self._ask(request, made)
            self._pending.pop(0)
        self._look_whether_finished()

    async def _ask(self, request: Request, made: Controller) -> None:
        now, intake = self.clock.now, self.store.intake
        match request:
            case Submit(_, job):
                self._creating = replace(job, created=now, updated=now)
                try:
                    await intake.create_job(self._creating, ())
                except AlreadyExists:
                    pass  # the answer to the first try was lost
                finally:
                    self._creating = None
                self._acknowledged.add(job.uid)
                made.wake(job.uid)
            case Cancel(_, uid):
                await self._cancel(uid, made)
            case Relabel(_, uid):
                await intake.replace_labels(self._names[uid], (("at", str(now)),), "", now)
            case OrderDrill(_, uid, drill):
                try:
                    await intake.order_drill(self._names[uid], replace(drill, ordered=now))
                except FailedPrecondition:
                    return
                made.wake(uid)
            case DrainNode(_, node, drained):
                if drained:
                    self.books.drained.add(node)
                    await intake.drain_node(NodeDrain(node, now, "new disks"))
                else:
                    self.books.drained.discard(node)
                    await intake.undrain_node(node)
                self._block(HOUR)
                await made.capacity_changed()
            case SetQuota(_, key, limit):
                if limit is None:
                    self.books.quotas.pop(key, None)
                    await intake.clear_quota(key)
                    self._block(HOUR)
                else:
                    await intake.set_quota(key, limit)
                    self.books.quotas[key] = limit
                    self.books.quotas_since = now
                await made.capacity_changed()
            case _:
                assert_never(request)

    async def _cancel(self, uid: JobUid, made: Controller) -> None:
        now = self.clock.now
        try:
            await self.store.intake.request_cancel(
                self._names[uid], CancelRequested(CancelCause.USER, now)
            )
        except FailedPrecondition:
            if not self.books.jobs[uid].state.is_final:
                self.books.wrong.append(f"a cancel of job {uid} was refused while it is not over")
            return
        self._accepted.setdefault(uid, now)
        made.wake(uid)

    # --- mishaps ---

    def _befall(self, mishap: Mishap) -> None:
        world, node, until = self.world, mishap.node, self.clock.now + mishap.lasts
        self.tally.faults[mishap.kind] += 1
        self._block(mishap.lasts + HOUR)
        match mishap.kind:
            case "die" | "cut_off":
                world.die(node) if mishap.kind == "die" else world.cut_off(node)
                self.clock.at(until, lambda: world.come_back(node))
            case "drain":
                world.drain(node)
                self.clock.at(until, lambda: world.drain(node, draining=False))
            case "kill_zygote":
                world.kill_zygote(mishap.lasts)
            case "kill_shim" | "kill_program":
                if running := world.running():
                    seat = self._dice.choice(running)
                    if mishap.kind == "kill_shim":
                        world.kill_shim(seat)
                    elif seat.latest is not None and world.clock.now >= world.unavailable_until:
                        one = seat.latest
                        world.inject(
                            seat.job_uid, seat.attempt, seat.replica, one.number, Fault.KILL
                        )
            case "refuse":
                world.refuse_launches += 1
            case "fail":
                world.fail(until)
            case _:
                raise AssertionError(mishap.kind)

    def _block(self, lasts: int) -> None:
        self.books.blocked_until = max(self.books.blocked_until, self.clock.now + lasts)

    def _kill(self) -> None:
        raise Crash("at a moment")

    def _overdue(self) -> None:
        raise Overdue("not all jobs have ended")

    # --- the end ---

    async def _check_store(self) -> None:
        """What is stored in the end is what was promised on the way."""
        wrong = self.books.wrong
        for uid in self._acknowledged:
            job, _ = await self.store.reader.job_by_uid(uid)
            if not job.state.is_final:
                wrong.append(f"job {uid} was accepted and is {job.state} in the end")
            story = await self.store.reader.timeline(uid)
            times = [entry.at for entry in story if entry.kind not in _SIGHTINGS]
            if times != sorted(times):
                kinds = [(entry.at, entry.kind) for entry in story]
                wrong.append(f"the timeline of job {uid} goes backwards: {kinds}")
        for uid, at in self._accepted.items():
            job, _ = await self.store.reader.job_by_uid(uid)
            primary = next((r.exit for r in job.replicas if r.id.is_primary), None)
            if job.state is not JobState.CANCELLED and (primary is None or primary.ended > at):
                told = self.books.judges[uid].told()
                wrong.append(f"job {uid} was cancelled at {at} and is {job.state}\n{told}")


class _Errors(logging.Handler):
    """Nothing that the service itself calls an error may happen."""

    def __init__(self, wrong: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._wrong = wrong

    def emit(self, record: logging.LogRecord) -> None:
        self._wrong.append(logging.Formatter().format(record))
