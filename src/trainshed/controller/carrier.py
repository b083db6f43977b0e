"""Carries out what a stored job demands: one instruction at a time per job, each at least once.

Never decides and never writes state: what comes of an instruction goes back as events.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, assert_never

from trainshed.controller.launching import Launching, launch_plans, slot_requests
from trainshed.core.lifecycle.events import (
    Event,
    Instruction,
    PreparationFailed,
    PrepareRuntime,
    ReleaseSlots,
    RuntimePrepared,
    StartReplicas,
    StopReplicas,
)
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.runtime import RuntimeChoice
from trainshed.engines.port import Engine, EngineUnavailable, LaunchRejected
from trainshed.runtimes.port import BuildFailed, PackageFailed, PreparedRuntime, Runtimes

RETRY_DELAYS = (0.05, 0.2, 1.0, 5.0)
"""Seconds between tries while an engine cannot answer; the last one repeats."""


class JobDirProbe(Protocol):
    """Tries to write below a gs:// prefix. Blocking; called from a worker thread."""

    def write_probe(self, uri: str) -> None:
        """Raises OSError or ValueError saying why a program could not write there."""
        ...


@dataclass(frozen=True, slots=True)
class Hands:
    """What the carrier works with. `report` gives an event back to the loop."""

    engine: Engine
    runtimes: Runtimes
    job_dir: JobDirProbe
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
    if job.spec.job_dir:
        return False
    return all(runtimes.ready(choice, uris) is not None for choice, uris in packages(job))


def preparation(job: Job) -> str:
    """What a job waits for before its programs can start, for its timeline."""
    wanted = [
        f"{choice.family} {choice.version} (Python {choice.python_version})".replace("  ", " ")
        + (f" with {len(uris)} package{'s' if len(uris) > 1 else ''}" if uris else "")
        for choice, uris in packages(job)
    ]
    return f"Preparing {' and '.join(wanted)}; what is built once is kept."


async def carry_out(hands: Hands, job: Job, instruction: Instruction) -> None:
    """Do one instruction, trying again while the engine cannot answer. Raises only what no port announces."""
    tries = 0
    while True:
        try:
            await _once(hands, job, instruction)
        except EngineUnavailable:
            await asyncio.sleep(RETRY_DELAYS[min(tries, len(RETRY_DELAYS) - 1)])
            tries += 1
        except (LaunchRejected, BuildFailed) as failure:
            return _failed(hands, job, str(failure), by_user=False)
        except PackageFailed as failure:
            return _failed(hands, job, str(failure), by_user=True)
        else:
            return None


def _failed(hands: Hands, job: Job, message: str, *, by_user: bool) -> None:
    hands.report(job.uid, PreparationFailed(job.attempt, message, by_user))


async def _once(hands: Hands, job: Job, instruction: Instruction) -> None:
    match instruction:
        case PrepareRuntime():
            await _probe_job_dir(hands, job)
            for choice, uris in packages(job):
                await hands.runtimes.prepare(choice, uris)
            hands.report(job.uid, RuntimePrepared(job.attempt))
        case StartReplicas():
            prepared = {
                package: await _prepared(hands.runtimes, package) for package in packages(job)
            }
            slots = await hands.engine.allocate(job.uid, job.attempt, slot_requests(job))
            await hands.engine.launch(launch_plans(job, slots, prepared, hands.launching))
        case StopReplicas():
            # Replicas that were never started are reported too, so the engine must know the gang.
            await hands.engine.allocate(job.uid, job.attempt, slot_requests(job))
            await hands.engine.stop(job.uid, job.attempt, hands.grace)
        case ReleaseSlots():
            await hands.engine.release(job.uid, job.attempt)
        case _:
            assert_never(instruction)


async def _prepared(runtimes: Runtimes, package: Package) -> PreparedRuntime:
    return runtimes.ready(*package) or await runtimes.prepare(*package)


async def _probe_job_dir(hands: Hands, job: Job) -> None:
    """SPEC §1.6: a jobDir that cannot be written is found out before the program starts."""
    if not job.spec.job_dir:
        return
    try:
        await asyncio.to_thread(hands.job_dir.write_probe, job.spec.job_dir)
    except (OSError, ValueError) as failure:
        raise PackageFailed(
            f"The job directory {job.spec.job_dir} cannot be written: {failure}"
        ) from None
