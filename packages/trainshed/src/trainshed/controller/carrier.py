"""Executes the instructions of stored jobs: one at a time per job, each at least once. This module makes no
decisions and writes no state. The results of an instruction become events.

The carrier abandons an instruction that no longer applies at two safe points: while environments are built,
and between two attempts. The output of builds is written to the job's log line by line. Builds run in threads
and do not know their job. `BuildOutput` passes their lines to the event loop, and writes them to the log.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self, assert_never

from msgspec import Struct

from trainshed.controller.launch_plans import LaunchDefaults, launch_plans, slot_requests
from trainshed.core.capacity import Delay, WaitReason
from trainshed.core.cluster import has_reducers
from trainshed.core.environment import service_account
from trainshed.core.failure.evidence import Cause
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.events import (
    DrillLanded,
    Event,
    InjectFault,
    Instruction,
    PreparationFailed,
    PrepareRuntime,
    ReleaseSlots,
    RuntimePrepared,
    StartDelayed,
    StartReplicas,
    StopReplica,
    StopReplicas,
)
from trainshed.core.lifecycle.records import Job, StopNotice
from trainshed.core.lifecycle.replica_events import NEVER_STARTED, ReplicaLost
from trainshed.core.lifecycle.transition import instructions
from trainshed.core.names import JobUid
from trainshed.core.packages import JobPackage
from trainshed.core.runtime import CONTAINER, RuntimeChoice
from trainshed.datasets.port import Account, DataRefused, DataUnwritten, SplitFiles, summary
from trainshed.engines.port import (
    Engine,
    EngineUnavailable,
    Fault,
    LaunchRejected,
    SecretMissing,
    StartFailed,
    StillWaiting,
)
from trainshed.eventloop.background import begin, in_turns, joined, keep
from trainshed.runtimes.port import BuildFailed, PackageFailed, PreparedRuntime, Runtimes
from trainshed.store.logs.service_log import ServiceLog
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

RETRY_DELAYS = (0.05, 0.2, 1.0, 5.0)
"""Seconds between attempts while an engine cannot respond. The last value repeats."""
RETRY_INTERVAL = 1.0
"""Seconds before an instruction that failed for an unexpected reason is tried again."""
_PLAN_BLOCK_SIZE = 8
"""Number of launch plans that are created before other tasks run on the event loop."""
_REPORT_AFTER = len(RETRY_DELAYS)
"""Number of failed attempts after which the reason is logged and reported. Most failures of an engine end
earlier."""
_COLLECT_INTERVAL = 0.2
"""Seconds for which lines are collected before they are written."""

Package = tuple[RuntimeChoice, tuple[JobPackage, ...]]
"""A runtime and the packages on top of it."""


class Ports(Struct, frozen=True):
    """The interfaces through which instructions are executed."""

    engine: Engine
    runtimes: Runtimes
    #: Writes the splits of datasets that programs read.
    datasets: SplitFiles
    #: Returns (name, directory) of the buckets that are visible to a project's programs. Does not block.
    #: Raises EngineUnavailable if they cannot be read.
    shown_buckets: Callable[[str], tuple[tuple[str, str], ...]]
    #: Raises OSError or ValueError, with the reason, if a project's program with a service account cannot
    #: write to a URI. Blocks.
    write_probe: Callable[[str, str, str], None]
    #: Stores the output of preparations.
    log: ServiceLog
    launch_defaults: LaunchDefaults
    #: Reports an event to the control loop.
    report: Callable[[JobUid, Event], None]
    #: Nanoseconds that a stopped program has for its exit before it is killed.
    grace: int


class JobCarrier:
    """Executes one job's instructions in order, one at a time, in one task."""

    def __init__(self, ports: Ports, job: Callable[[], Job], finished: Callable[[], None]) -> None:
        """`job`: returns the stored state of the job. `finished`: called when no instructions remain for
        now."""
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
        """The task that executes instructions now, or None."""
        return self._task

    def update(self) -> None:
        """Start executing the stored job's instructions. Called after each change of the job, and for each
        new job."""
        wanted = instructions(self._job())
        self._done = {
            instruction for instruction in wanted if any(_includes(done, instruction) for done in self._done)
        }
        self._changed.set()
        if self._current not in wanted and isinstance(self._current, PrepareRuntime):
            assert self._step is not None
            self._step.cancel()  # Safe, because no program of the job was started.
        if self._task is None:
            if self._next() is None:
                self._finished()
            else:
                self._task = begin(self._run(), f"job {self._job().uid}: carrying out", self._restart_later)

    def cancel(self) -> None:
        """Cancel the current instruction, and start no other."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._step is not None:
            self._step.cancel()

    def _restart_later(self, _: Exception) -> None:
        """Restart the carrier after a pause. Otherwise no further instruction of the job would be
        executed."""
        self._task = None
        asyncio.get_running_loop().call_later(RETRY_INTERVAL, self.update)

    def _next(self) -> Instruction | None:
        if self._closed:
            return None
        return next(
            (instruction for instruction in instructions(self._job()) if instruction not in self._done), None
        )

    async def _run(self) -> None:
        while (instruction := self._next()) is not None:
            self._current = instruction
            self._step = joined(self._execute(instruction))
            done = False
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    done = await self._step
            finally:
                self._current = self._step = None
            if done:
                wanted = instructions(self._job())
                self._done.update(other for other in wanted if _includes(instruction, other))
        self._task = None
        self._finished()

    async def _execute(self, instruction: Instruction) -> bool:
        """Execute an instruction with retries.

        Return True if it succeeded or was reported as impossible. Return False if it was abandoned because it
        no longer applies.
        """
        tries = 0
        while True:
            delay = RETRY_DELAYS[min(tries, len(RETRY_DELAYS) - 1)]
            try:
                await _carry_out(self._ports, self._job(), instruction)
                return True
            except EngineUnavailable as failure:
                if tries == _REPORT_AFTER and not isinstance(failure, StillWaiting):
                    what = type(instruction).__name__
                    text = "%s: %s; retrying every %g s"
                    self._log(instruction).warning(text, what, failure, delay)
                    self._report_delay(instruction, failure, delay)
            except Exception as failure:
                # All exceptions are caught, because an unexpected failure must not leave the job without a
                # carrier.
                if (cause := _cause_of(failure)) is not None:
                    self._report_failure(instruction, str(failure), cause)
                    return True
                name = type(instruction).__name__
                self._log(instruction).exception("%s could not be carried out", name)
                if isinstance(instruction, PrepareRuntime | StartReplicas):
                    self._report_failure(instruction, repr(failure), Cause.SERVICE)
                    return True
                # Retry without a limit, because nothing else can end the replica or release its slot (its
                # position on a node).
                delay = RETRY_INTERVAL
            if not await self._pause(delay):
                return False
            tries += 1

    def _log(self, instruction: Instruction) -> logging.LoggerAdapter[logging.Logger]:
        replica = instruction.replica if isinstance(instruction, StopReplica) else None
        return about(log, self._job().uid, attempt=instruction.attempt, replica=replica)

    def _report_failure(self, instruction: Instruction, message: str, cause: Cause) -> None:
        """Report that the instruction can never succeed. The event contains the attempt, because the job may
        have started another one."""
        failure = PreparationFailed(instruction.attempt, message, cause)
        self._ports.report(self._job().uid, failure)

    def _report_delay(self, instruction: Instruction, failure: Exception, pause: float) -> None:
        """Report the reason why the engine does not start an attempt, as an entry of the job's timeline."""
        if isinstance(instruction, StartReplicas):
            message = f"The engine cannot start the job now and retries every {pause:g} s: {failure}"
            delay = Delay(WaitReason.ENGINE, message)
            self._ports.report(self._job().uid, StartDelayed(instruction.attempt, delay))

    async def _pause(self, seconds: float) -> bool:
        """Wait for `seconds`, and return True. Return False as soon as the current instruction no longer
        applies."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._current in instructions(self._job()):
                    await self._changed.wait()
                    self._changed.clear()
        return self._current in instructions(self._job())


def _cause_of(failure: Exception) -> Cause | None:
    """Return the cause for a failure that a port documents, otherwise None."""
    match failure:
        case PackageFailed() | SecretMissing():
            return Cause.PACKAGE
        case DataRefused():
            return Cause.DATA
        case LaunchRejected():
            return Cause.REJECTED
        case StartFailed() | BuildFailed() | DataUnwritten():
            return Cause.SERVICE
        case _:
            return None


def _includes(done: Instruction, other: Instruction) -> bool:
    """Return whether an executed instruction includes another one. A start of a gang includes later starts of
    replicas that have not reported their start yet."""
    if isinstance(done, StartReplicas) and isinstance(other, StartReplicas):
        return done.attempt == other.attempt and set(other.waiting) <= set(done.waiting)
    return done == other


async def _carry_out(ports: Ports, job: Job, instruction: Instruction) -> None:
    engine, uid = ports.engine, job.uid
    match instruction:
        case PrepareRuntime():
            await prepare(ports, job, instruction.attempt)
        case StartReplicas():
            # Start the log in parallel, because programs need more time for their first line.
            beginning = begin(start_log(ports, job), f"job {job.uid}: starting its log")
            await _launch(ports, job, instruction)
            await beginning
        case StopReplica(attempt, replica, incarnation):
            if await _has_slots(engine, uid, attempt):
                notice = StopNotice.MAINTENANCE
                await engine.stop_replica(uid, attempt, replica, incarnation, ports.grace, notice=notice)
            else:
                ports.report(
                    uid,
                    ReplicaLost(
                        attempt=attempt, replica=replica, incarnation=incarnation, cause=NEVER_STARTED
                    ),
                )
        case StopReplicas():
            await _stop(ports, job, instruction)
        case InjectFault(number, kind, attempt, replica, incarnation):
            await engine.inject(uid, attempt, replica, incarnation, Fault(kind.value))
            ports.report(uid, DrillLanded(number))
        case ReleaseSlots(attempt):
            await _release_before(engine, uid, attempt + 1)
        case _:
            assert_never(instruction)


async def _launch(ports: Ports, job: Job, instruction: StartReplicas) -> None:
    prepared = await _environments(ports, job, instruction.attempt)
    packages = None
    if has_reducers(job.spec):
        packages = ports.runtimes.reduction() or await ports.runtimes.prepare_reduction()
    await _release_before(ports.engine, job.uid, instruction.attempt)
    requests = slot_requests(job, ports.launch_defaults)
    slots = await ports.engine.allocate(job.uid, instruction.attempt, requests)
    waiting = dict(instruction.waiting)
    buckets = ports.shown_buckets(job.name.project_id)
    plans: list[LaunchPlan] = []
    # Each launch plan contains the whole gang, so the plans of a large gang take some time.
    async for some in in_turns(tuple(waiting.items()), _PLAN_BLOCK_SIZE):
        plans += launch_plans(
            job, slots, prepared, ports.launch_defaults, dict(some), buckets=buckets, packages=packages
        )
    await ports.engine.launch(plans)


async def _stop(ports: Ports, job: Job, instruction: StopReplicas) -> None:
    uid, attempt = job.uid, instruction.attempt
    if not await _has_slots(ports.engine, uid, attempt):
        for other in job.replicas:
            ports.report(
                uid,
                ReplicaLost(
                    attempt=attempt, replica=other.id, incarnation=other.incarnation, cause=NEVER_STARTED
                ),
            )
        return
    decision = job.outcome or job.retry
    notice = decision.notice if decision is not None else None
    await ports.engine.stop(uid, attempt, ports.grace, notice)
    for replica, incarnation in instruction.waiting:
        await ports.engine.stop_replica(uid, attempt, replica, incarnation, ports.grace)


async def _has_slots(engine: Engine, uid: JobUid, attempt: int) -> bool:
    """Return whether the engine has slots (positions on nodes) for the replicas of an attempt.

    If it has none, no program of the attempt has run or will run. The reason is the order of a job's
    instructions: the start of the attempt was executed before this call.
    """
    return (uid, attempt) in await engine.allocations()


async def _release_before(engine: Engine, uid: JobUid, attempt: int) -> None:
    for earlier in range(1, attempt):
        await engine.release(uid, earlier)


def packages(job: Job) -> tuple[Package, ...]:
    """Return the distinct environments that a job needs. Most jobs run the same program in every pool."""
    wanted = {pool.program.environment for pool in job.spec.pools}
    return tuple(sorted(wanted, key=repr))


def is_ready(runtimes: Runtimes, job: Job) -> bool:
    """Return whether a job can start without a preparation, because everything is built and no probe or split
    is necessary."""
    if _probe_directory(job) or job.spec.data is not None:
        return False
    if has_reducers(job.spec) and runtimes.reduction() is None:
        return False
    return all(runtimes.ready(*package) is not None for package in packages(job))


def preparation_message(job: Job) -> str:
    """Return the timeline message about the preparation that a job waits for."""
    wanted = [
        _title(choice) + (f" with {len(on_top)} package{'s' if len(on_top) > 1 else ''}" if on_top else "")
        for choice, on_top in packages(job)
    ]
    if job.spec.data is not None:
        wanted.append(f"the splits of the dataset {job.spec.data.dataset.dataset_id}")
    return f"Preparing {' and '.join(wanted)}. The result is kept for later jobs."


def _title(choice: RuntimeChoice) -> str:
    if choice.family == CONTAINER:
        return f"the image {choice.image}"
    return f"{choice.family} {choice.version} (Python {choice.python_version})".replace("  ", " ")


async def prepare(ports: Ports, job: Job, attempt: int) -> None:
    await start_log(ports, job)
    project = job.name.project_id
    account = service_account(project, job.spec)
    if directory := _probe_directory(job):
        try:
            await asyncio.to_thread(ports.write_probe, directory, project, account)
        except (OSError, ValueError) as failure:
            what = f"The job directory {directory} cannot be written: {failure}"
            raise PackageFailed(what) from None
    async with BuildOutput(job.uid, attempt, ports.log) as output:
        for choice, on_top in packages(job):
            await ports.runtimes.prepare(choice, on_top, output.add)
        if has_reducers(job.spec):
            await ports.runtimes.prepare_reduction(output.add)
        # Fast if an earlier attempt or trial wrote the files.
        if (plan := job.spec.data) is not None:
            reader = Account(project, account, str(job.uid))
            for line in summary(await ports.datasets.write(plan, reader, output.add)):
                output.add(line)
    ports.report(job.uid, RuntimePrepared(attempt, output.duration))


async def start_log(ports: Ports, job: Job) -> None:
    """Write the first entries of a job's log: notices about replaced runtimes, and warnings. Has no effect
    after the first attempt."""
    notices = dict.fromkeys((*job.spec.runtime_notices, *job.spec.warnings))
    if job.attempt > 1 or not notices:
        return
    try:
        await ports.log.start(job.uid, job.attempt, tuple(notices))
    except OSError as failure:
        about(log, job.uid, attempt=job.attempt).warning("log not written: %s", failure)


async def _environments(ports: Ports, job: Job, attempt: int) -> dict[Package, PreparedRuntime]:
    """Return the environments of a job. Environments that were removed after the preparation are built
    again."""
    runtimes = {package: ports.runtimes.ready(*package) for package in packages(job)}
    ready = {package: runtime for package, runtime in runtimes.items() if runtime is not None}
    if missing := [package for package in runtimes if package not in ready]:
        async with BuildOutput(job.uid, attempt, ports.log) as output:
            for package in missing:
                ready[package] = await ports.runtimes.prepare(*package, output.add)
    return ready


def _probe_directory(job: Job) -> str | None:
    """Return the job directory to probe, or None. The probe detects an unwritable jobDir before the program
    starts for the first time (spec/submit#job-directory)."""
    return job.spec.job_dir if job.attempt <= 1 else None


class BuildOutput:
    """Collects the output of one preparation, as a context manager. On exit, all lines are written."""

    def __init__(self, uid: JobUid, attempt: int, written_to: ServiceLog) -> None:
        self._uid = uid
        self._attempt = attempt
        self._log = written_to
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._lines: list[str] = []
        self._left = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._heard = False

    @property
    def duration(self) -> int:
        """Return the duration of the builds in ns, or 0 if nothing was built."""
        # At least 1 for a build: the loop's clock may not advance within a millisecond.
        return max(1, round((self._loop.time() - self._began) * 1e9)) if self._heard else 0

    def add(self, line: str) -> None:
        """Add a line. Callable from any thread, even after the end of the preparation."""
        # If the service has stopped during a build, the event loop is closed. The line is then lost.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._add_line, line)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is GeneratorExit:
            return  # The event loop has stopped, so nothing can be awaited.

        # Let the event loop first process the earlier lines that are still in its queue.
        await asyncio.sleep(0)
        self._left.set()
        if self._writing is not None:
            # The write is not awaited directly, because cancelling the caller must not cancel the write.
            await asyncio.wait([self._writing])

    def _add_line(self, line: str) -> None:
        if self._left.is_set():
            return
        self._heard = True
        self._lines.append(line)
        if self._writing is None:
            self._writing = keep(self._write, f"job {self._uid}: writing the output of its preparation")

    async def _write(self) -> None:
        while self._lines:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_COLLECT_INTERVAL):
                    await self._left.wait()
            lines, self._lines = self._lines, []
            try:
                await self._log.append(self._uid, self._attempt, lines)
            except OSError as failure:
                about(log, self._uid, attempt=self._attempt).warning("log not written: %s", failure)
        self._writing = None
