"""Runs one program from its job to its exit status: prepares the runtime, starts the replica, shows its
lines, ends it.

Uses the same parts as a service, but no controller and no store: nothing of a run is stored or retried.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from trainshed.buckets.local import LocalStore
from trainshed.cli.text.printable import coloured
from trainshed.controller.launch_plans import LaunchDefaults, launch_plans, slot_requests
from trainshed.core.job.exits import ExitRecord
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost
from trainshed.core.runtime import CONTAINER
from trainshed.core.specs import warnings
from trainshed.core.streams import Streams, StreamSource
from trainshed.core.units import Bytes
from trainshed.engines.launch.devices import NvmlDevices
from trainshed.engines.local import machine
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import (
    LinesWritten,
    ReplicaReport,
    Slot,
)
from trainshed.eventloop.background import begin
from trainshed.replica import protocol
from trainshed.replica.supervisor import program
from trainshed.runtimes.images.service import Images, ImageSettings
from trainshed.runtimes.port import PackageSource, PreparedRuntime
from trainshed.runtimes.service import LocalRuntimes, RuntimeSettings
from trainshed.serve import certificates, clock
from trainshed.serve.bucket_adapters import BucketAdapter
from trainshed.serve.engine_adapters import build_terms
from trainshed.serve.local_run import job as jobs
from trainshed.serve.local_run import program_files
from trainshed.serve.local_run.request import LocalRunRequest, NotRun
from trainshed.serve.local_run.storage import Storage
from trainshed.serve.local_run.workspace import Workspace
from trainshed.serve.settings import Settings
from trainshed.store.logs.segments import Entry, ReplicaLog


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How the program ended."""

    record: ExitRecord
    #: Memory limit in bytes.
    memory_limit: Bytes
    #: The directory in which its files are kept; None = they are not.
    kept: str | None = None


@dataclass(frozen=True, slots=True)
class RunPorts:
    """What a run works with."""

    settings: Settings
    workspace: Workspace
    #: The buckets; they have begun to start, as the engine has.
    storage: Storage
    engine: LocalEngine
    #: Done when storage and engine have started.
    started: "asyncio.Future[Any]"
    #: Takes a line for the terminal.
    tell: Callable[[str], None]


class Output:
    """Copies a program's lines from its replica's log to this command's output, in the order in which they
    came."""

    def __init__(self, streams: Streams, source: StreamSource) -> None:
        self._log = ReplicaLog(streams, source)
        self._next = 0

    def show(self) -> None:
        """Write the new lines: the program's stdout to stdout, its stderr and the service's notices to
        stderr; to a terminal as text, to a file unchanged. Blocks as long as the reader does. Raises
        BrokenPipeError if there is no reader any more."""
        last = None
        for entry in self._log.forwards(self._is_old):
            stream = sys.stdout.buffer if entry.s == "o" else sys.stderr.buffer
            if last is not stream and last is not None:
                last.flush()
            text = coloured(entry.m) if stream.isatty() else entry.m
            stream.write(text.encode("utf-8", "replace") + (b"" if entry.p else b"\n"))
            last = stream
            self._next = entry.n + 1
        if last is not None:
            last.flush()

    def _is_old(self, entry: Entry) -> bool:
        return entry.n < self._next


class Run:
    """One local run; can be run once."""

    def __init__(self, request: LocalRunRequest, parts: RunPorts) -> None:
        settings = parts.settings
        self._request = request
        self._settings = settings
        self._workspace = parts.workspace
        self._tell = parts.tell
        self._place = jobs.ProjectRegion(settings.project, settings.region)
        self._engine = parts.engine
        self._started = parts.started
        self._buckets = LocalStore(
            settings.data / "buckets", now=clock.now, rules=parts.storage.rules
        )
        self._asked = 0
        self._job: Job | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._is_read = True

    async def run(self) -> RunEnd:
        """Run the program to its end. Raises NotRun, what engines and runtimes raise, and
        asyncio.CancelledError if it was interrupted before the program began."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._interrupt, task)
        return await self._run()

    async def _run(self) -> RunEnd:
        settings = self._settings
        pack = await asyncio.to_thread(program_files.pack, self._request)
        await self._started
        self._buckets.ensure_bucket(settings.default_bucket, settings.region)
        adapter = BucketAdapter(self._buckets)
        source = program_files.LocalPackages(pack.parcels, lambda: adapter)
        runtimes = new_runtimes(settings, source, self._engine)
        try:
            job = await self._new_job(pack, runtimes, adapter)
            prepared = await self._prepare(runtimes, job)
        finally:
            await asyncio.to_thread(runtimes.close)
        requests = slot_requests(job, self._defaults())
        slots = await self._engine.allocate(job.uid, 1, requests)
        if self._request.entry:
            await asyncio.to_thread(self._furnish, job, slots[0], pack, prepared)
        plan = self._plan(job, slots, pack, prepared, adapter)
        self._job = job
        await self._engine.launch([plan])
        record = await self._follow(job)
        kept = self._keep(job, prepared) if self._request.keep else None
        memory = (await self._engine.capacity())[0].memory_bytes
        return RunEnd(record, min(plan.limits.memory or memory, memory), kept)

    def _interrupt(self, task: "asyncio.Task[RunEnd]") -> None:
        """Stop the program: the first time it has its grace to end, the second time it is killed."""
        self._asked += 1
        if self._job is None:
            task.cancel()
            return
        if self._asked == 1:
            self._tell(f"Stopping: the program has {self._settings.grace:g} seconds to end.")
        grace = round(self._settings.grace * 1e9) if self._asked == 1 else 0
        self._stopping = begin(self._engine.stop(self._job.uid, 1, grace), "stopping the program")

    # --- the job ---

    async def _new_job(
        self, pack: program_files.ProgramFiles, runtimes: LocalRuntimes, adapter: BucketAdapter
    ) -> Job:
        request = self._request
        catalog = jobs.NamedRuntimes(runtimes.catalog, request.image)
        public = jobs.custom_job(request, pack, catalog.uri)
        # In a thread: looking for interpreters and container tools may take a moment.
        spec = await asyncio.to_thread(jobs.specified, request, pack, self._place, public, catalog)
        notices = list(spec.warnings)
        if request.output:
            self._check_output(adapter)
        for name in dict.fromkeys(warnings.named_directories(spec.pools)):
            if adapter.is_unmounted(name):
                notices.append(warnings.not_mounted(name))
        if request.gpu:
            there = {
                kind for node in await self._engine.capacity() for kind, _ in node.accelerators
            }
            notices += filter(None, [warnings.without_gpus(spec.pools, there)])
        spec = replace(spec, warnings=tuple(notices))
        return jobs.job(clock.JobUids()(), self._place, spec, clock.now(), machine.NAME)

    def _check_output(self, adapter: BucketAdapter) -> None:
        name = self._request.output[5:].partition("/")[0]
        if adapter.bucket_location(name) is None or adapter.is_closed(name, self._place.project):
            raise NotRun(
                f"--base-output-dir: there is no bucket {name!r} for the project {self._place.project!r}; "
                f"the default one is gs://{self._settings.default_bucket}."
            )

    async def _prepare(self, runtimes: LocalRuntimes, job: Job) -> PreparedRuntime:
        now = clock.now() / 1e9
        certifying = asyncio.to_thread(
            certificates.prepare_interception, self._settings.data, now, os.environ
        )
        prepared, _ = await asyncio.gather(self._environment(runtimes, job), certifying)
        return prepared

    async def _environment(self, runtimes: LocalRuntimes, job: Job) -> PreparedRuntime:
        asked = job.spec.pools[0].program
        ready = runtimes.ready(asked.runtime, asked.packages)
        return ready or await runtimes.prepare(asked.runtime, asked.packages, self._tell)

    def _slot(self, job: Job) -> Path:
        layout = Layout(self._workspace.directory.resolve())
        return layout.attempt(job.uid, 1) / str(jobs.REPLICA)

    def _furnish(
        self, job: Job, slot: Slot, pack: program_files.ProgramFiles, prepared: PreparedRuntime
    ) -> None:
        files, source = self._slot(job) / protocol.FILES, self._request.directory
        away = (self._settings.data, self._settings.cache)
        if prepared.image is None:
            program_files.copy_program(files, source, pack.trees, away)
        else:
            program_files.copy_into_image(files, source, pack.trees, away, owner=slot.users)
            program_files.write_packages(pack.parcels, self._packages)

    @property
    def _packages(self) -> Path:
        """The packages that an image's own Python installs, which are shown as if they were in a bucket."""
        return self._workspace.directory / "packages"

    def _defaults(self) -> LaunchDefaults:
        return LaunchDefaults(
            memory_cap=self._settings.memory_per_replica << 20, own_root=self._settings.own_root
        )

    def _plan(
        self,
        job: Job,
        slots: tuple[Slot, ...],
        pack: program_files.ProgramFiles,
        prepared: PreparedRuntime,
        adapter: BucketAdapter,
    ) -> LaunchPlan:
        asked = job.spec.pools[0].program
        buckets = adapter.shown(self._place.project)
        if asked.runtime.family == CONTAINER and pack.parcels:
            buckets = (*buckets, (program_files.BUCKET, str(self._packages)))
        (plan,) = launch_plans(
            job,
            slots,
            {(asked.runtime, asked.packages): prepared},
            self._defaults(),
            {jobs.REPLICA: 1},
            buckets=buckets,
        )
        software = plan.software
        if software.image is None or not self._request.entry:
            return plan
        image = replace(software.image, workdir=program_files.APP)
        return replace(plan, software=replace(software, image=image))

    # --- its life ---

    async def _follow(self, job: Job) -> ExitRecord:
        """Show the lines until the program ends, and return its exit record. Raises NotRun, and
        BrokenPipeError if nobody read the lines any more and the program was killed."""
        output = Output(self._engine.streams, StreamSource(job.uid, 1, jobs.REPLICA))
        async for event in self._engine.watch():
            match event:
                case LinesWritten():
                    await self._show(output, job)
                case ReplicaReport(event=ReplicaExited(exit=record)):
                    await self._show(output, job)
                    if not self._is_read:
                        raise BrokenPipeError
                    return record
                case ReplicaReport(event=ReplicaLost(cause=cause)):
                    await self._show(output, job)
                    raise NotRun(f"The program was lost: {cause}.")
                case _:
                    pass
        raise NotRun("The engine has ended before the program.")

    async def _show(self, output: Output, job: Job) -> None:
        if not self._is_read:
            return
        try:
            await asyncio.to_thread(output.show)
        except BrokenPipeError:
            # The reader has gone, as `head` does, so the program is killed.
            self._is_read = False
            await self._engine.stop(job.uid, 1, 0)

    def _keep(self, job: Job, prepared: PreparedRuntime) -> str:
        self._workspace.keep()
        files = self._slot(job) / protocol.FILES
        if prepared.image is not None:
            return str(files / program.LAYER / "upper")
        return str(files / program.WORK)


def status_of(record: ExitRecord) -> int:
    """Return the exit status as a shell does: the program's own, or 128 and the number of the signal that it
    died of."""
    if record.signal is not None:
        return 128 + record.signal
    return record.exit_code or 0


def new_runtimes(settings: Settings, source: PackageSource, engine: LocalEngine) -> LocalRuntimes:
    """Return the runtimes of a local run, with a service's settings."""

    def no_images() -> str:
        promised = engine.capabilities()
        if promised.images:
            return ""
        return f"Container images need namespaces, and there are none here (isolation {promised.isolation})."

    return LocalRuntimes(
        settings.cache,
        source,
        RuntimeSettings(
            exact=settings.exact_runtimes,
            image_map=settings.images,
            terms=build_terms(settings, engine),
            has_gpu=lambda: bool(NvmlDevices(os.environ).find()),
        ),
        now=clock.now,
        images=Images(
            settings.cache / "images",
            ImageSettings(settings.container_tool, settings.image_pull),
            now=clock.now,
            unsupported=no_images,
        ),
    )
