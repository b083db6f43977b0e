"""What a job needs before its programs can start: environments, packages, a directory that can be written.

What is heard while environments are built goes to the job's log line by line, and to its timeline now and
then. Builds run in threads and know no job: `BuildOutput` takes their lines to the event loop, gathers them,
and writes them; nothing is committed for a line.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from itertools import chain, count
from types import TracebackType
from typing import Self

from trainshed.controller.ports import Ports, PreparationLog
from trainshed.core.cluster import has_reducers
from trainshed.core.lifecycle.events import Event, PreparationAdvanced, RuntimePrepared
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.runtime import CONTAINER, RuntimeChoice
from trainshed.eventloop.background import keep
from trainshed.runtimes.port import PackageFailed, PreparedRuntime, Runtimes
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

_GATHER = 0.2
"""Seconds for which lines are gathered before they are written."""
_LONGEST_TOLD = 300
"""Characters of a line on the timeline; the log has all of them."""


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


def preparation_message(job: Job) -> str:
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


async def prepare(ports: Ports, job: Job, attempt: int) -> None:
    await begin_log(ports, job)
    await _probe_job_dir(ports, job)
    async with BuildOutput(job.uid, attempt, ports.log, ports.report) as output:
        for choice, uris in packages(job):
            await ports.runtimes.prepare(choice, uris, output.hear)
        if has_reducers(job.spec):
            await ports.runtimes.prepare_reduction(output.hear)
    ports.report(job.uid, RuntimePrepared(attempt, output.took))


async def begin_log(ports: Ports, job: Job) -> None:
    """A job's log begins with what it is to be told: what it gets instead of what it asked for, and
    warnings."""
    notices = dict.fromkeys((*job.spec.runtime_notices, *job.spec.warnings))
    if job.attempt > 1 or not notices:
        return
    try:
        await ports.log.begin(job.uid, job.attempt, tuple(notices))
    except OSError as failure:
        about(log, job.uid, attempt=job.attempt).warning("log not written: %s", failure)


async def prepared_runtimes(ports: Ports, job: Job, attempt: int) -> dict[Package, PreparedRuntime]:
    """The environments of a job, of which one may have gone since they were prepared."""
    wanted = packages(job)
    there = {package: ports.runtimes.ready(*package) for package in wanted}
    found = {package: runtime for package, runtime in there.items() if runtime is not None}
    if len(found) < len(wanted):
        async with BuildOutput(job.uid, attempt, ports.log, ports.report) as output:
            for package in (one for one in wanted if one not in found):
                found[package] = await ports.runtimes.prepare(*package, output.hear)
    return found


async def reduction_directory(ports: Ports, job: Job) -> str:
    """Where the programs of a job with reducers find what they need for that; "" for other jobs."""
    if not has_reducers(job.spec):
        return ""
    return ports.runtimes.reduction() or await ports.runtimes.prepare_reduction()


def _is_probed(job: Job) -> bool:
    """spec/submit#job-directory: a jobDir that cannot be written is found out before the program starts for
    the first time."""
    return bool(job.spec.job_dir) and job.attempt <= 1


async def _probe_job_dir(ports: Ports, job: Job) -> None:
    if not _is_probed(job):
        return
    try:
        await asyncio.to_thread(ports.buckets.write_probe, job.spec.job_dir)
    except (OSError, ValueError) as failure:
        raise PackageFailed(
            f"The job directory {job.spec.job_dir} cannot be written: {failure}"
        ) from None


class BuildOutput:
    """The ear of one preparation, as a context: when it is left, every line that came is written."""

    def __init__(
        self,
        uid: JobUid,
        attempt: int,
        written_to: PreparationLog,
        report: Callable[[JobUid, Event], None],
    ) -> None:
        self._uid = uid
        self._attempt = attempt
        self._log = written_to
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._began = _now(self._loop)
        # Ever more seldom: half an hour of building is ten entries.
        self._moments = chain((3.0, 10.0, 30.0), (60.0 * 2**n for n in count()))
        self._next = next(self._moments)
        self._lines: list[str] = []
        self._left = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._heard = False

    @property
    def took(self) -> int:
        """ns for which was built; 0 = nothing was."""
        # The clock of the loop may stand still for a millisecond.
        return max(1, round((_now(self._loop) - self._began) * 1e9)) if self._heard else 0

    def hear(self, line: str) -> None:
        """Take a line. From any thread, also when nobody listens any more."""
        # The service may have gone while a build was on its way to its end.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, line)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is GeneratorExit:
            return  # Dropped with its loop, which never turns again.
        # What was heard before is on its way.
        await asyncio.sleep(0)
        self._left.set()
        if self._writing is not None:
            # Not awaited itself: whoever is cancelled here cancels no write.
            await asyncio.wait([self._writing])

    def _take(self, line: str) -> None:
        if self._left.is_set():
            return
        self._heard = True
        self._lines.append(line)
        if self._writing is None:
            self._writing = keep(self._write, f"job {self._uid}: writing what its preparation says")

    async def _write(self) -> None:
        while self._lines:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GATHER):
                    await self._left.wait()
            lines, self._lines = self._lines, []
            try:
                await self._log.append(self._uid, self._attempt, lines)
            except OSError as failure:
                about(log, self._uid, attempt=self._attempt).warning("log not written: %s", failure)
            self._tell(lines[-1])
        self._writing = None

    def _tell(self, line: str) -> None:
        passed = _now(self._loop) - self._began
        if self._left.is_set() or passed < self._next:
            return
        while passed >= self._next:
            self._next = next(self._moments)
        message = line.strip()[:_LONGEST_TOLD]
        self._report(self._uid, PreparationAdvanced(self._attempt, message, self.took))


def _now(loop: asyncio.AbstractEventLoop) -> float:
    """Seconds on the loop's own clock, which a simulation drives."""
    return loop.time()
