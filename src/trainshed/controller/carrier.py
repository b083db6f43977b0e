"""Carries out what a stored job demands: one instruction at a time per job, each at least once.

Never decides and never writes state: what comes of an instruction goes back as events. An instruction that is
not demanded any more is given up where that harms nothing: while environments are built, and between two
tries.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import assert_never

from trainshed.controller.launch_plans import launch_plans, slot_requests
from trainshed.controller.ports import Ports
from trainshed.controller.preparation import (
    begin_log,
    prepare,
    prepared_runtimes,
    reduction_directory,
)
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.events import (
    DrillLanded,
    DropReducers,
    InjectFault,
    Instruction,
    PreparationFailed,
    PrepareRuntime,
    ReleaseSlots,
    ReplicaLost,
    StartReplicas,
    StopReplica,
    StopReplicas,
)
from trainshed.core.lifecycle.instructions import instructions
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.engines.port import Engine, EngineUnavailable, Fault, LaunchRejected, SecretMissing
from trainshed.eventloop.background import begin, in_turns, joined
from trainshed.runtimes.port import BuildFailed, PackageFailed
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

RETRY_DELAYS = (0.05, 0.2, 1.0, 5.0)
"""Seconds between tries while an engine cannot answer; the last one repeats."""
PAUSE = 1.0
"""Seconds before what could not be carried out, for a reason that no port announces, is tried again."""
_PLANS_IN_A_TURN = 8
"""Launch plans that are made before others have their turn on the loop."""
_TOLD_AT = len(RETRY_DELAYS)
"""After so many tries in vain somebody should know why: most of what an engine cannot do passes sooner."""
_NEVER_STARTED = "never started"


class JobCarrier:
    """Carries out one job's instructions in their order, one at a time, in one task."""

    def __init__(self, ports: Ports, job: Callable[[], Job], finished: Callable[[], None]) -> None:
        """`job`: the job as it is stored now. `finished`: called when nothing is left to be done for now."""
        self._ports = ports
        self._job = job
        self._finished = finished
        self._done: set[Instruction] = set()
        self._current: Instruction | None = None
        self._changed = asyncio.Event()
        self._step: asyncio.Task[bool] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What works now, if anything does."""
        return self._task

    def look(self) -> None:
        """The stored job has changed, or is seen for the first time: begin what it demands."""
        wanted = instructions(self._job())
        self._done = {one for one in wanted if any(_includes(done, one) for done in self._done)}
        self._changed.set()
        if self._current not in wanted and isinstance(self._current, PrepareRuntime):
            assert self._step is not None
            self._step.cancel()  # nothing was started yet, so there is nothing to wait for
        if self._task is None:
            if self._next() is None:
                self._finished()
            else:
                self._task = begin(self._run(), f"job {self._job().uid}: carrying out", self._died)

    def cancel(self) -> None:
        """Stop in the middle; nothing more is begun."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._step is not None:
            self._step.cancel()

    def _died(self, _: Exception) -> None:
        """Nothing of the job would be carried out any more: look again in a while."""
        self._task = None
        asyncio.get_running_loop().call_later(PAUSE, self.look)

    def _next(self) -> Instruction | None:
        if self._closed:
            return None
        return next((one for one in instructions(self._job()) if one not in self._done), None)

    async def _run(self) -> None:
        while (instruction := self._next()) is not None:
            self._current = instruction
            self._step = joined(self._do(instruction))
            done = False
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    done = await self._step
            finally:
                self._current = self._step = None
            if done:
                wanted = instructions(self._job())
                self._done.update(one for one in wanted if _includes(instruction, one))
        self._task = None
        self._finished()

    async def _do(self, instruction: Instruction) -> bool:
        """Carry it out, whatever goes wrong. Whether it was done, or reported as what cannot be done; False:
        given up, because it is not demanded any more."""
        while True:
            try:
                return await self._until_answered(instruction)
            except Exception as failure:
                # As broad as this: what no port announces must not leave the job without anybody who carries
                # it on.
                name = type(instruction).__name__
                self._log(instruction).exception("%s could not be carried out", name)
                if isinstance(instruction, PrepareRuntime | StartReplicas):
                    self._failed(instruction, repr(failure), by_user=False)
                    return True
                # Nothing else would ever end the replica or give the slots back.
                if not await self._pause(PAUSE):
                    return False

    async def _until_answered(self, instruction: Instruction) -> bool:
        """As `_do`, trying again while the engine cannot answer. Raises only what no port announces."""
        tries = 0
        while True:
            try:
                await _carry_out(self._ports, self._job(), instruction)
            except EngineUnavailable as failure:
                delay = RETRY_DELAYS[min(tries, len(RETRY_DELAYS) - 1)]
                if tries == _TOLD_AT:
                    what = type(instruction).__name__
                    text = "%s: %s; it is tried every %g s"
                    self._log(instruction).warning(text, what, failure, delay)
                if not await self._pause(delay):
                    return False
                tries += 1
            except (PackageFailed, SecretMissing) as failure:
                self._failed(instruction, str(failure), by_user=True)
                return True
            except (LaunchRejected, BuildFailed) as failure:
                self._failed(instruction, str(failure), by_user=False)
                return True
            else:
                return True

    def _log(self, instruction: Instruction) -> logging.LoggerAdapter[logging.Logger]:
        replica = instruction.replica if isinstance(instruction, StopReplica) else None
        return about(log, self._job().uid, attempt=instruction.attempt, replica=replica)

    def _failed(self, instruction: Instruction, message: str, *, by_user: bool) -> None:
        """Report that it will never be done, by the attempt: the job may have gone on to another one."""
        failure = PreparationFailed(instruction.attempt, message, by_user)
        self._ports.report(self._job().uid, failure)

    async def _pause(self, seconds: float) -> bool:
        """Wait; False if what is being done is not demanded any more."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._current in instructions(self._job()):
                    await self._changed.wait()
                    self._changed.clear()
        return self._current in instructions(self._job())


def _includes(done: Instruction, one: Instruction) -> bool:
    """Whether what was done includes the other: of a gang that was handed over, some replicas are reported
    sooner."""
    if isinstance(done, StartReplicas) and isinstance(one, StartReplicas):
        return done.attempt == one.attempt and set(one.waiting) <= set(done.waiting)
    return done == one


async def _carry_out(ports: Ports, job: Job, instruction: Instruction) -> None:
    engine, uid = ports.engine, job.uid
    match instruction:
        case PrepareRuntime():
            await prepare(ports, job, instruction.attempt)
        case StartReplicas():
            await _start(ports, job, instruction)
        case StopReplica(attempt, replica, incarnation):
            if await _has_slots(engine, uid, attempt):
                await engine.stop_replica(uid, attempt, replica, incarnation, ports.grace)
            else:
                ports.report(uid, ReplicaLost(attempt, replica, incarnation, _NEVER_STARTED))
        case StopReplicas():
            await _stop(ports, job, instruction)
        case InjectFault(number, kind, attempt, replica, incarnation):
            await engine.inject(uid, attempt, replica, incarnation, Fault(kind.value))
            ports.report(uid, DrillLanded(number))
        case DropReducers(attempt, reducers):
            await engine.drop_reducers(uid, attempt, reducers)
        case ReleaseSlots(attempt):
            await _release_before(engine, uid, attempt + 1)
        case _:
            assert_never(instruction)


async def _start(ports: Ports, job: Job, instruction: StartReplicas) -> None:
    await begin_log(ports, job)
    prepared = await prepared_runtimes(ports, job, instruction.attempt)
    packages = await reduction_directory(ports, job)
    await _release_before(ports.engine, job.uid, instruction.attempt)
    slots = await ports.engine.allocate(job.uid, instruction.attempt, slot_requests(job))
    waiting = dict(instruction.waiting)
    buckets = ports.buckets.shown(job.name.project_id)
    plans: list[LaunchPlan] = []
    # Each plan names all of the gang, so a large one takes its time.
    async for some in in_turns(tuple(waiting.items()), _PLANS_IN_A_TURN):
        plans += launch_plans(
            job,
            slots,
            prepared,
            ports.launch_defaults,
            dict(some),
            buckets=buckets,
            packages=packages,
        )
    await ports.engine.launch(plans)


async def _stop(ports: Ports, job: Job, instruction: StopReplicas) -> None:
    uid, attempt = job.uid, instruction.attempt
    if not await _has_slots(ports.engine, uid, attempt):
        for one in job.replicas:
            ports.report(uid, ReplicaLost(attempt, one.id, one.incarnation, _NEVER_STARTED))
        return
    await ports.engine.stop(uid, attempt, ports.grace)
    for replica, incarnation in instruction.waiting:
        await ports.engine.stop_replica(uid, attempt, replica, incarnation, ports.grace)


async def _has_slots(engine: Engine, uid: JobUid, attempt: int) -> bool:
    """Whether slots were ever given out. If not, nothing of the attempt ran, and nothing will: a job's
    instructions are carried out one after the other, and there is no more start among them."""
    return (uid, attempt) in await engine.allocations()


async def _release_before(engine: Engine, uid: JobUid, attempt: int) -> None:
    for earlier in range(1, attempt):
        await engine.release(uid, earlier)
