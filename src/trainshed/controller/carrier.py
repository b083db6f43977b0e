"""Carries out what a stored job demands: one instruction at a time per job, each at least once.

Never decides and never writes state: what comes of an instruction goes back as events.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, assert_never

from trainshed.controller.launching import Launching, launch_plans, slot_requests
from trainshed.controller.preparing import Hearing, PreparationLog
from trainshed.core.cluster import has_reducers
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.events import (
    DrillLanded,
    DropReducers,
    Event,
    InjectFault,
    Instruction,
    PreparationFailed,
    PrepareRuntime,
    ReleaseSlots,
    ReplicaLost,
    RuntimePrepared,
    StartReplicas,
    StopReplica,
    StopReplicas,
)
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.runtime import CONTAINER, RuntimeChoice
from trainshed.engines.port import Engine, EngineUnavailable, Fault, LaunchRejected, SecretMissing
from trainshed.eventloop.background import in_turns
from trainshed.runtimes.port import BuildFailed, PackageFailed, PreparedRuntime, Runtimes

log = logging.getLogger(__name__)

RETRY_DELAYS = (0.05, 0.2, 1.0, 5.0)
"""Seconds between tries while an engine cannot answer; the last one repeats."""
_PLANS_IN_A_TURN = 8
"""Launch plans that are made before others have their turn on the loop."""
_TOLD_AT = len(RETRY_DELAYS)
"""After so many tries in vain somebody should know why: most of what an engine cannot do passes sooner."""
_NEVER_STARTED = "never started"


class JobBuckets(Protocol):
    """What is asked about the buckets of a job. Blocking; called from a worker thread, but for `shown`."""

    def shown(self, project: str) -> tuple[tuple[str, str], ...]:
        """(name, directory) of the buckets that a project's programs may see. Answers at once."""
        ...

    def write_probe(self, uri: str) -> None:
        """Raises OSError or ValueError saying why a program could not write there."""
        ...

    def last_written(self, uri: str) -> int:
        """When something below it was last written (ns), 0 = there is nothing, -1 = it cannot be known."""
        ...


@dataclass(frozen=True, slots=True)
class Hands:
    """What the carrier works with. `log`: where lines of preparations go. `report` gives an event back to the loop."""

    engine: Engine
    runtimes: Runtimes
    buckets: JobBuckets
    log: PreparationLog
    launching: Launching
    report: Callable[[JobUid, Event], None]
    grace: int


Package = tuple[RuntimeChoice, tuple[str, ...]]


def packages(job: Job) -> tuple[Package, ...]:
    """The environments a job needs, each once: most jobs run the same program in every pool."""
    wanted = {(pool.program.runtime, pool.program.package_uris) for pool in job.spec.pools}
    return tuple(sorted(wanted, key=repr))


def ready(runtimes: Runtimes, job: Job) -> bool:
    """True if a start needs no preparation: everything is built and nothing has to be probed."""
    if _is_probed(job):
        return False
    if has_reducers(job.spec) and runtimes.reduction() is None:
        return False
    return all(runtimes.ready(choice, uris) is not None for choice, uris in packages(job))


def preparation(job: Job) -> str:
    """What a job waits for before its programs can start, for its timeline."""
    wanted = [
        _title(choice)
        + (f" with {len(uris)} package{'s' if len(uris) > 1 else ''}" if uris else "")
        for choice, uris in packages(job)
    ]
    return f"Preparing {' and '.join(wanted)}; what is built once is kept."


def _title(choice: RuntimeChoice) -> str:
    if choice.family == CONTAINER:
        return f"the image {choice.image}"
    return f"{choice.family} {choice.version} (Python {choice.python_version})".replace("  ", " ")


async def carry_out(
    hands: Hands,
    job: Callable[[], Job],
    instruction: Instruction,
    pause: Callable[[float], Awaitable[bool]],
) -> bool:
    """Do one instruction for the job as it is then, trying again while the engine cannot answer. `pause` waits so many
    seconds, or until the instruction is not demanded any more, which it says by False. Returns whether it was done, or
    reported as what cannot be done; False: it was given up. Raises only what no port announces."""
    tries = 0
    while True:
        try:
            await _once(hands, job(), instruction)
        except EngineUnavailable as failure:
            if tries == _TOLD_AT:
                what, pausing = type(instruction).__name__, RETRY_DELAYS[-1]
                told = "job %d: %s: %s; it is tried every %g s"
                log.warning(told, job().uid, what, failure, pausing)
            if not await pause(RETRY_DELAYS[min(tries, len(RETRY_DELAYS) - 1)]):
                return False
            tries += 1
        except (PackageFailed, SecretMissing) as failure:
            failed(hands, job().uid, instruction, str(failure), by_user=True)
            return True
        except (LaunchRejected, BuildFailed) as failure:
            failed(hands, job().uid, instruction, str(failure), by_user=False)
            return True
        else:
            return True


def failed(
    hands: Hands, uid: JobUid, instruction: Instruction, message: str, *, by_user: bool
) -> None:
    """Report that it will never be done. The job may have gone on to another attempt, which is not to blame."""
    hands.report(uid, PreparationFailed(instruction.attempt, message, by_user))


async def _once(hands: Hands, job: Job, instruction: Instruction) -> None:
    engine, uid = hands.engine, job.uid
    match instruction:
        case PrepareRuntime():
            await _prepare(hands, job, instruction)
        case StartReplicas():
            await _start(hands, job, instruction)
        case StopReplica(attempt, replica, incarnation):
            if await _has_slots(engine, uid, attempt):
                await engine.stop_replica(uid, attempt, replica, incarnation, hands.grace)
            else:
                hands.report(uid, ReplicaLost(attempt, replica, incarnation, _NEVER_STARTED))
        case StopReplicas():
            await _stop(hands, job, instruction)
        case InjectFault(number, kind, attempt, replica, incarnation):
            await engine.inject(uid, attempt, replica, incarnation, Fault(kind.value))
            hands.report(uid, DrillLanded(number))
        case DropReducers(attempt, reducers):
            await engine.drop_reducers(uid, attempt, reducers)
        case ReleaseSlots(attempt):
            await _release_before(engine, uid, attempt + 1)
        case _:
            assert_never(instruction)


async def _prepare(hands: Hands, job: Job, instruction: PrepareRuntime) -> None:
    await _begin_log(hands, job)
    await _probe_job_dir(hands, job)
    async with Hearing(job.uid, instruction.attempt, hands.log, hands.report) as hearing:
        for choice, uris in packages(job):
            await hands.runtimes.prepare(choice, uris, hearing.hear)
        if has_reducers(job.spec):
            await hands.runtimes.prepare_reduction(hearing.hear)
    hands.report(job.uid, RuntimePrepared(instruction.attempt, hearing.took))


async def _start(hands: Hands, job: Job, instruction: StartReplicas) -> None:
    await _begin_log(hands, job)
    prepared = await _prepared(hands, job, instruction)
    packages = await _reduction(hands, job)
    await _release_before(hands.engine, job.uid, instruction.attempt)
    slots = await hands.engine.allocate(job.uid, instruction.attempt, slot_requests(job))
    waiting = dict(instruction.waiting)
    buckets = hands.buckets.shown(job.name.project_id)
    plans: list[LaunchPlan] = []
    # Each plan names all of the gang, so a large one takes its time.
    async for some in in_turns(tuple(waiting.items()), _PLANS_IN_A_TURN):
        plans += launch_plans(
            job, slots, prepared, hands.launching, dict(some), buckets=buckets, packages=packages
        )
    await hands.engine.launch(plans)


async def _begin_log(hands: Hands, job: Job) -> None:
    """A job's log begins with what it is to be told: what it gets instead of what it asked for, and warnings."""
    notices = dict.fromkeys((*job.spec.runtime_notices, *job.spec.warnings))
    if job.attempt > 1 or not notices:
        return
    try:
        await hands.log.begin(job.uid, job.attempt, tuple(notices))
    except OSError as failure:
        log.warning("job %d: its log cannot be written: %s", job.uid, failure)


async def _stop(hands: Hands, job: Job, instruction: StopReplicas) -> None:
    uid, attempt = job.uid, instruction.attempt
    if not await _has_slots(hands.engine, uid, attempt):
        for one in job.replicas:
            hands.report(uid, ReplicaLost(attempt, one.id, one.incarnation, _NEVER_STARTED))
        return
    await hands.engine.stop(uid, attempt, hands.grace)
    for replica, incarnation in instruction.waiting:
        await hands.engine.stop_replica(uid, attempt, replica, incarnation, hands.grace)


async def _has_slots(engine: Engine, uid: JobUid, attempt: int) -> bool:
    """Whether slots were ever given out. If not, nothing of the attempt ran, and nothing will: a job's instructions
    are carried out one after the other, and there is no more start among them."""
    return (uid, attempt) in await engine.allocations()


async def _release_before(engine: Engine, uid: JobUid, attempt: int) -> None:
    for earlier in range(1, attempt):
        await engine.release(uid, earlier)


async def _prepared(
    hands: Hands, job: Job, instruction: StartReplicas
) -> dict[Package, PreparedRuntime]:
    """The environments of a job, of which one may have gone since they were prepared."""
    wanted = packages(job)
    there = {package: hands.runtimes.ready(*package) for package in wanted}
    found = {package: runtime for package, runtime in there.items() if runtime is not None}
    if len(found) < len(wanted):
        async with Hearing(job.uid, instruction.attempt, hands.log, hands.report) as hearing:
            for package in (one for one in wanted if one not in found):
                found[package] = await hands.runtimes.prepare(*package, hearing.hear)
    return found


async def _reduction(hands: Hands, job: Job) -> str:
    """Where the programs of a job with reducers find what they need for that; "" for other jobs."""
    if not has_reducers(job.spec):
        return ""
    return hands.runtimes.reduction() or await hands.runtimes.prepare_reduction()


def _is_probed(job: Job) -> bool:
    """SPEC §1.6: a jobDir that cannot be written is found out before the program starts for the first time."""
    return bool(job.spec.job_dir) and job.attempt <= 1


async def _probe_job_dir(hands: Hands, job: Job) -> None:
    if not _is_probed(job):
        return
    try:
        await asyncio.to_thread(hands.buckets.write_probe, job.spec.job_dir)
    except (OSError, ValueError) as failure:
        raise PackageFailed(
            f"The job directory {job.spec.job_dir} cannot be written: {failure}"
        ) from None
